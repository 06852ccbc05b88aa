#!/usr/bin/env python3
"""Checks the rules of layering and style that a compiler does not. Prints file:line: rule: finding; exits 1 if any.

usage: tidy.py ROOT
"""

import fnmatch
import os
import re
import sys

OURS = ["base", "transport", "store", "replication", "recovery", "client", "tools", "tests", "bench", "examples"]
ANY = set(OURS)

# What a folder may include of ours, besides itself; the same holds for the targets that it links.
LAYERS = {
    "base": set(),
    "transport": {"base"},
    "store": {"base"},
    "replication": {"base", "store", "transport"},
    "recovery": {"base", "store", "transport", "replication"},
    "client": {"base"},
    "examples": {"client"},
    "tools": ANY,
    "tests": ANY,
    "bench": ANY,
}

# Where the headers of a library may be included (shell patterns); tests and benchmarks may use any but the hardware's.
LIBRARIES = [
    ("gRPC", r"^(grpc\+\+|grpcpp|grpc)/|\.grpc\.pb\.h$", ["replication/*grpc*", "recovery/*grpc*", "tools/*", "tests/*", "bench/*"]),
    ("SQLite", r"^sqlite3", ["replication/*sqlite*", "tests/*", "bench/*"]),
    ("spdlog", r"^spdlog/", ["tools/*", "tests/*", "bench/*"]),
    ("CLI11", r"^CLI/", ["tools/*", "examples/*", "tests/*", "bench/*"]),
    ("prometheus-cpp", r"^prometheus/", ["tools/*", "tests/*", "bench/*"]),
    ("toml++", r"^toml(\+\+|plusplus)?[/.]", ["tools/*", "tests/*"]),
    ("verbs", r"^(infiniband|rdma)/", ["transport/rdma/*", "tests/rdma_vm/*"]),
    ("CUDA", r"^cuda", ["client/*device*", "store/*device*"]),
    ("liburing", r"^liburing", ["store/*uring*"]),
]

# The client library goes into other people's processes: only these besides the C++ runtime and the system.
CLIENT_LIBRARIES = re.compile(r"^(protozero/|xxhash\.h$|gloo/)")
SYSTEM_HEADER = re.compile(r"^([a-z_]+|(sys|netinet|arpa|linux|net)/[a-z_]+\.h|[a-z_]+\.h)$")

PROTOCOL = "docs/protocol.md"
ATTACKS = "docs/attacks.md"

LINE_COLUMNS_MAX = 100
FILE_LINES_MAX = 600
HEADER_LINES_MAX = 250
FUNCTION_LINES_MAX = 70

HEADER = (".h", ".hpp")
SOURCE = HEADER + (".cc",)
TEXT = SOURCE + (".py", ".sh", ".md", ".cmake", ".proto", ".txt", ".toml")
SKIPPED_FOLDERS = {".git", "build", ".cache", "__pycache__"}


class Tidy:
    def __init__(self, root, allowed):
        self.root = root
        self.allowed = allowed
        self.excused = set()
        self.findings = []

    def report(self, path, line, rule, text):
        for index, (allowed_rule, pattern, _) in enumerate(self.allowed):
            if rule == allowed_rule and fnmatch.fnmatch(path, pattern):
                self.excused.add(index)
                return
        self.findings.append((path, line, rule, text))

    def run(self):
        for path in sorted(self.files()):
            with open(os.path.join(self.root, path), encoding="utf-8", errors="replace") as file:
                lines = file.read().split("\n")
            self.check_text(path, lines)
            if path.endswith(SOURCE):
                self.check_includes(path, lines)
                self.check_source(path, lines)
                self.check_functions(path, lines)
            if path.endswith(".md"):
                self.check_links(path, lines)
            if os.path.basename(path) == "CMakeLists.txt":
                self.check_targets(path, lines)
        if os.path.exists(os.path.join(self.root, ATTACKS)):
            self.check_attacks()
        for index, (rule, pattern, _) in enumerate(self.allowed):
            if index not in self.excused:
                self.findings.append(("tests/tidy/allowed.py", 1, "allowed", f"({rule}, {pattern}) excuses nothing"))
        return self.findings

    def files(self):
        for folder, folders, names in os.walk(self.root):
            folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS]
            for name in names:
                path = os.path.relpath(os.path.join(folder, name), self.root)
                if not path.startswith("tests/tidy/"):
                    yield path

    # Every text file.
    def check_text(self, path, lines):
        if not path.endswith(TEXT):
            return
        for number, line in enumerate(lines, 1):
            if line != line.rstrip():
                self.report(path, number, "whitespace", "space at the end of the line")
            if path.endswith(SOURCE) and len(line) > LINE_COLUMNS_MAX and "http" not in line:
                self.report(path, number, "columns", f"{len(line)} columns, at most {LINE_COLUMNS_MAX}")
            if re.search(r"\b(TODO|FIXME|XXX)\b", line):
                self.report(path, number, "todo", "finish it or write an issue")

    # Layers and libraries.
    def check_includes(self, path, lines):
        layer = path.split("/")[0]
        if layer not in LAYERS:
            return
        for number, line in enumerate(lines, 1):
            match = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
            if match is None:
                continue
            header = match[2]
            self.check_layer(path, number, layer, header)
            for library, pattern, places in LIBRARIES:
                if re.search(pattern, header) and not any(fnmatch.fnmatch(path, place) for place in places):
                    self.report(path, number, "library", f"{library} headers belong to: {', '.join(places)}")
            if layer == "client" and match[1] == "<":
                if not CLIENT_LIBRARIES.match(header) and not SYSTEM_HEADER.match(header):
                    self.report(path, number, "library", f"{header}: only the C++ runtime, protozero and xxHash here")

    def check_layer(self, path, number, layer, header):
        if header.endswith(".pb.h") and layer in ("base", "client", "examples"):
            self.report(path, number, "layer", "generated code pulls libprotobuf into other people's processes")
        if layer == "examples" and header.startswith("client/") and not header.startswith("client/include/"):
            self.report(path, number, "layer", "an example shows the public API: client/include only")
        other = header.split("/")[0]
        if "/" not in header or other not in LAYERS or other == layer or other in LAYERS[layer]:
            return
        allowed = ", ".join(sorted(LAYERS[layer])) or "nothing of ours"
        self.report(path, number, "layer", f"{layer}/ includes {other}/; it may include {allowed}")

    def check_targets(self, path, lines):
        layer = path.split("/")[0]
        if layer not in LAYERS:
            return
        for number, line in enumerate(lines, 1):
            code = line.split("#")[0]
            if re.search(r"\b(tests|enable_testing)\b", code):
                continue
            for target in re.findall(r"\bbackstay_([a-z]+)(?:_[a-z0-9_]+)?\b", code):
                if target in LAYERS and target != layer and target not in LAYERS[layer]:
                    self.report(path, number, "target", f"{layer}/ links {target}'s target")

    # One line at a time.
    def check_source(self, path, lines):
        is_header = path.endswith(HEADER)
        line_count = len(lines) - 1
        line_max = HEADER_LINES_MAX if is_header else FILE_LINES_MAX
        if line_count > line_max:
            self.report(path, line_count, "file-size", f"{line_count} lines, at most {line_max}")
        if is_header and "#pragma once" not in lines:
            self.report(path, 1, "pragma", "a header starts with #pragma once")
        sleep = re.compile(r"\b(sleep_for|sleep_until|usleep|nanosleep|sleep)\s*\(")
        for number, line in enumerate(lines, 1):
            code = line.split("//")[0]
            if re.match(r"\s*#\s*(if|ifdef|ifndef|elif)\b", code):
                self.report(path, number, "ifdef", "a back end is a file that CMake adds")
            if path.startswith("tests/") and sleep.search(code):
                self.report(path, number, "sleep", "a test waits for a condition, never for luck")
            if re.search(r"\bassert\s*\(", code):
                self.report(path, number, "assert", "BACKSTAY_CHECK for invariants, Status for input")

    # Roughly: from a line that opens a block at namespace or class level to the line that closes it.
    def check_functions(self, path, lines):
        start = None
        for number, line in enumerate(lines, 1):
            opens = line.endswith("{") and not line.startswith(("}", "//", "#"))
            is_type = re.match(r"\s*(inline namespace|namespace|class|struct|enum|union|extern|template)\b", line) or line.endswith("= {")
            if start is None and opens and not is_type and (line[0] != " " or line.startswith("  ") and line[2] != " "):
                start = (number, len(line) - len(line.lstrip()))
            elif start is not None and line.startswith(" " * start[1] + "}"):
                size = number - start[0] + 1
                if size > FUNCTION_LINES_MAX:
                    self.report(path, start[0], "function-size", f"{size} lines, at most {FUNCTION_LINES_MAX}")
                start = None

    # Every attack that the protocol names has a row with tests that exist.
    def check_attacks(self):
        def read(path):
            if not os.path.exists(os.path.join(self.root, path)):
                return ""
            with open(os.path.join(self.root, path), encoding="utf-8") as file:
                return file.read()

        rules = re.sub(r"\s*\n\s*", " ", read(PROTOCOL))
        named = [attack.rstrip(".") for attack in re.findall(r"\*Attack: (.*?)\*", rules)]
        tests = self.test_names()
        rows = []
        for number, line in enumerate(read(ATTACKS).split("\n"), 1):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if len(cells) != 3 or cells[0] in ("attack", "---"):
                continue
            rows.append(cells[0])
            if cells[0] not in named:
                self.report(ATTACKS, number, "attack", f"{PROTOCOL} does not name this attack")
                continue
            known = re.findall(r"`([\w.]+)`", cells[1])
            if not known:
                self.report(ATTACKS, number, "attack", "no test carries it out")
            for name in known:
                if name not in tests:
                    self.report(ATTACKS, number, "attack", f"there is no test {name}")
            for bug in re.findall(r"`(\w+)`", cells[2]):
                if not os.path.exists(os.path.join(self.root, "tests/sim/planted", bug + ".patch")):
                    self.report(ATTACKS, number, "attack", f"no bug {bug} is planted")
        for attack in named:
            if attack not in rows:
                self.report(PROTOCOL, 1, "attack", f"{ATTACKS} has no row for: {attack}")

    # "Suite.Name" of every test in C++ and Python.
    def test_names(self):
        names = set()
        for path in self.files():
            if not path.startswith("tests/") or not path.endswith((".cc", ".py")):
                continue
            with open(os.path.join(self.root, path), encoding="utf-8") as file:
                text = file.read()
            names.update(f"{suite}.{name}" for suite, name in re.findall(r"^TEST(?:_F|_P)?\((\w+), (\w+)\)", text, re.M))
            suite = None
            for line in text.split("\n"):
                if match := re.match(r"class (\w+)\(", line):
                    suite = match[1]
                elif match := re.match(r"    def (test_\w+)\(", line):
                    names.add(f"{suite}.{match[1]}")
        return names

    # Links and mentions of code in documents.
    def check_links(self, path, lines):
        folder = os.path.dirname(path)
        for number, line in enumerate(lines, 1):
            for target in re.findall(r"\]\(([^)\s]+)\)", line):
                file = target.split("#")[0]
                if file and "://" not in target and not target.startswith("mailto:"):
                    if not os.path.exists(os.path.join(self.root, folder, file)):
                        self.report(path, number, "link", f"{target} does not exist")
            if path in ("docs/save_path.md", "docs/restore_path.md"):
                for file, function in re.findall(r"([\w/]+\.(?:cc|h|py|sh|proto)):([A-Za-z_][\w:]*)", line):
                    self.check_mention(path, number, file, function)

    def check_mention(self, path, number, file, function):
        try:
            with open(os.path.join(self.root, file), encoding="utf-8") as source:
                text = source.read()
        except OSError:
            self.report(path, number, "mention", f"{file} does not exist")
            return
        if not re.search(r"\b" + re.escape(function) + r"\b", text):
            if not re.search(r"\b" + re.escape(function.split("::")[-1]) + r"\b", text) or "::" not in function:
                self.report(path, number, "mention", f"{file} has no {function}")


def main():
    if len(sys.argv) != 2 or not os.path.isdir(sys.argv[1]):
        print(__doc__, file=sys.stderr)
        return 2
    from allowed import ALLOWED

    findings = Tidy(sys.argv[1], ALLOWED).run()
    for path, line, rule, text in findings:
        print(f"{path}:{line}: {rule}: {text}")
    print(f"tidy: {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
