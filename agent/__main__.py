"""Run a checkout: python -m agent VERB."""

from .app.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
