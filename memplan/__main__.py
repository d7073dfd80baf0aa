"""`python -m memplan` is the same as `memplan`."""

from memplan.cli import main

if __name__ == "__main__":
    main()
