"""Amazon EC2. provider.py puts it together; calls.py is the only speaker of boto3."""
