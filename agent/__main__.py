"""Run a checkout: python -m agent VERB."""

from .service.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
