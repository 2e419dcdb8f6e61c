"""What is asked again and again beside the loop, each in a thread of its own."""
