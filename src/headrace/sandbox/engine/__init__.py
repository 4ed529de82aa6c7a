"""Sandboxes in podman and docker, through their command lines."""
