"""One module per verb of the command line: here alone the learner and the robots meet."""
