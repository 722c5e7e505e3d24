"""Replaces that library's copy of OpenVINO: `external.openvino` is the installed one."""
