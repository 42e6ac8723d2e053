"""Reading a user's model: its layers, what happens when it runs, its convolutions as products."""
