"""The same questions to every text of a folder, by as many workers as there is room for.

usage: ask_a_shelf.py MODEL FOLDER OUTPUT.jsonl QUESTION...

Killed and started again, it goes on; every text has one row.
"""

import json
import sys
from pathlib import Path

from unlimiformer.batch import Job, find_documents, run


def main() -> None:
    """Workers import this file: what runs stands in a function."""
    model, folder, output, *questions = sys.argv[1:]
    work = Job("ask", model, questions=tuple(questions), generation={"max_new_tokens": 24, "do_sample": False})
    run(find_documents(folder), output, work, log=lambda line: sys.stderr.write(line + "\n"))
    for line in Path(output).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        for told in row.get("answers", [{"question": "", "answer": row.get("error")}]):
            sys.stdout.write(f"{row['id']}: {told['question']} {told['answer']}\n")


if __name__ == "__main__":
    main()
