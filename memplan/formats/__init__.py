"""Reading files strictly: nothing in them is believed before it is checked."""
