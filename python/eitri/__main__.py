"""`python -m eitri` is the command `eitri`."""

import os
import pathlib
import sys


def main():
    command = pathlib.Path(__file__).parent / "bin" / "eitri"
    if not command.is_file():
        sys.exit("eitri: the command is not beside this package; it is built by `make build` and part of the wheel")
    os.execv(command, [str(command), *sys.argv[1:]])


if __name__ == "__main__":
    main()
