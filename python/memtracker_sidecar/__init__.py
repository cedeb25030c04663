"""Runs real training code for one rank of a job under FakeTensorMode and streams every storage event."""
