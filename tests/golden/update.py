"""Write the golden files again: ``python tests/golden/update.py``.  Read the difference before you commit it."""

from __future__ import annotations

from golden_cases import DIRECTORY, path_of, texts


def main() -> None:
    wanted = {path_of(name): text for name, text in texts().items()}
    for path in DIRECTORY.glob("*.txt"):
        if path not in wanted:
            path.unlink()
            print(f"removed {path.name}")
    for path, text in wanted.items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"wrote {path.name}")


if __name__ == "__main__":
    main()
