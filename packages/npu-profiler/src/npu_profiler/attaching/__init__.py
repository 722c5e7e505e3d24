"""Recording a job that already runs: the command's side, the job's side, and where they meet."""
