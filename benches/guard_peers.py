"""Times detect-secrets and presidio-analyzer (patterns only) on a file: prints `name MB/s`, one a line."""

import sys
import time

path = sys.argv[1]
text = open(path, encoding="utf-8").read()
size = len(text.encode()) / 1e6


def timed(name, run):
    start = time.process_time()
    run()
    print(name, size / (time.process_time() - start), flush=True)


try:
    from detect_secrets import SecretsCollection
    from detect_secrets.settings import default_settings

    with default_settings():
        timed("detect-secrets", lambda: SecretsCollection().scan_file(path))
except ImportError:
    pass

try:
    from presidio_analyzer import predefined_recognizers as known

    names = ["CreditCardRecognizer", "EmailRecognizer", "IbanRecognizer", "IpRecognizer", "PhoneRecognizer", "UsSsnRecognizer"]
    recognizers = [getattr(known, name)() for name in names]
    # Recognizers alone, without an NLP engine: the part that is comparable. On a slice: it is slow.
    text = text[:20000]
    size = len(text.encode()) / 1e6
    timed(
        "presidio-patterns",
        lambda: [r.analyze(text=text, entities=r.supported_entities, nlp_artifacts=None) for r in recognizers],
    )
except ImportError:
    pass
