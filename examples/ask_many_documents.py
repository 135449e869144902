"""Asks the same questions about every text of a folder, with several worker processes.

usage: ask_many_documents.py MODEL FOLDER OUTPUT.jsonl QUESTION...

Every text gets one row in the output. After an interruption the same command continues.
"""

import json
import sys
from pathlib import Path

from unlimiformer.batch import Job, find_documents, run


def main() -> None:
    """Run the batch and print the answers; worker processes import this file, so all work is in a function."""
    model, folder, output, *questions = sys.argv[1:]
    job = Job("ask", model, questions=tuple(questions), generation={"max_new_tokens": 24, "do_sample": False})
    run(find_documents(folder), output, job, log=lambda line: sys.stderr.write(line + "\n"))
    for line in Path(output).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        for answer in row.get("answers", [{"question": "", "answer": row.get("error")}]):
            sys.stdout.write(f"{row['id']}: {answer['question']} {answer['answer']}\n")


if __name__ == "__main__":
    main()
