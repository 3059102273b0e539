"""`python -m dualform` is `dualform`."""

from dualform.cli import main

if __name__ == "__main__":
    main()
