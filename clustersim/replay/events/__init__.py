"""The replay by events, which is the definition: passes, pipeline, scheduler steps and decode jumps of one replica."""
