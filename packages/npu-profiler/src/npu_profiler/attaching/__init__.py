"""Recording a running job: the command's side, the job's side, and their shared files."""
