"""What starts and watches one task, on the machine where the task runs."""
