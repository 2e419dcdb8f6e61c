"""A mock of EC2: see `mock.Ec2Mock`."""
