"""`python -m pushsum` is `pushsum`."""

from pushsum.cli import main

if __name__ == "__main__":
    main()
