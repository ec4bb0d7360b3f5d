"""Programs that show what the parameter server is for, one package each."""
