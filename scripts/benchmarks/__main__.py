"""``python -m benchmarks``. New interpreters import this module again, so it holds nothing but the way in."""

if __name__ == "__main__":
    import sys

    if sys.argv[1:2] == ["once"]:
        from benchmarks.once import main
    else:
        from benchmarks.command import main
    sys.exit(main())
