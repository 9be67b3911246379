"""What starts a scenario: command lines and manifests of serving engines, and what these engines refuse."""
