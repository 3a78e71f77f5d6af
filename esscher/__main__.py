"""`python -m esscher` is the command line."""

from esscher.cli import main

if __name__ == "__main__":
    main()
