"""C++ compiled while a program runs, kept by its content."""
