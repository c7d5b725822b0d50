"""The files of a job: folders of the workspace that are the same in all of its pods."""
