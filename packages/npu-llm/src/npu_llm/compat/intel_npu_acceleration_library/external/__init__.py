"""Where that library had its own OpenVINO: `external.openvino` is the one that is installed."""
