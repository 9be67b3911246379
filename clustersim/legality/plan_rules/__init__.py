"""The rules of level P, a module per family; each is a function of a deployment and its layout."""
