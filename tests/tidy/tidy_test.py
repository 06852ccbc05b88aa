#!/usr/bin/env python3
"""Plants one violation of each rule in an empty tree and expects tidy.py to find exactly that one."""

import os
import tempfile
import unittest

from tidy import Tidy

HEADER = "#pragma once\n"
LONG_FUNCTION = "void F() {\n" + "  G();\n" * 70 + "}\n"

# rule, file, content, line of the finding
PLANTED = [
    ("layer", "base/a.h", HEADER + '#include "store/b.h"\n', 2),
    ("layer", "transport/a.cc", '#include "store/b.h"\n', 1),
    ("layer", "store/a.cc", '#include "transport/b.h"\n', 1),
    ("layer", "replication/a.cc", '#include "recovery/b.h"\n', 1),
    ("layer", "recovery/a.cc", '#include "client/b.h"\n', 1),
    ("layer", "client/a.cc", '#include "store/b.h"\n', 1),
    ("layer", "client/a.cc", '#include "client/local.pb.h"\n', 1),
    ("layer", "examples/a.cc", '#include "base/b.h"\n', 1),
    ("layer", "examples/a.cc", '#include "client/save.h"\n', 1),
    ("target", "store/CMakeLists.txt", "backstay_library(store\n  LINK backstay_replication)\n", 2),
    ("library", "store/a.cc", "#include <grpcpp/grpcpp.h>\n", 1),
    ("library", "replication/peer.cc", '#include "replication/peer_service.grpc.pb.h"\n', 1),
    ("library", "replication/a.cc", "#include <sqlite3.h>\n", 1),
    ("library", "recovery/a.cc", "#include <spdlog/spdlog.h>\n", 1),
    ("library", "base/a.cc", "#include <CLI/CLI.hpp>\n", 1),
    ("library", "base/a.cc", "#include <prometheus/counter.h>\n", 1),
    ("library", "transport/tcp/a.cc", "#include <infiniband/verbs.h>\n", 1),
    ("library", "store/slot.cc", "#include <cuda.h>\n", 1),
    ("library", "client/a.cc", "#include <openssl/sha.h>\n", 1),
    ("ifdef", "store/a.cc", "#ifdef __linux__\n#endif\n", 1),
    ("file-size", "store/a.cc", "int a;\n" * 601, 601),
    ("file-size", "store/a.h", HEADER + "int a;\n" * 250, 251),
    ("function-size", "store/a.cc", LONG_FUNCTION, 1),
    ("columns", "store/a.cc", "int " + "a" * 100 + ";\n", 1),
    ("todo", "docs/a.md", "later: " + "TO" + "DO\n", 1),
    ("whitespace", "docs/a.md", "a \n", 1),
    ("sleep", "tests/unit/a.cc", "std::this_thread::sleep_for(1ms);\n", 1),
    ("assert", "store/a.cc", "  assert(true);\n", 1),
    ("pragma", "store/a.h", "int a;\n", 1),
    ("pragma", "client/include/a.hpp", "int a;\n", 1),
    ("link", "docs/a.md", "see [b](b.md)\n", 1),
    ("mention", "docs/save_path.md", "`store/none.cc:Seal`\n", 1),
    ("attack", "docs/attacks.md", "| nobody names it | `SaveTest.Seals` | |\n", 1),
]


class TidyTest(unittest.TestCase):
    def findings(self, files, allowed=()):
        with tempfile.TemporaryDirectory() as root:
            for path, content in files.items():
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(content)
            return [(rule, path, line) for path, line, rule, _ in Tidy(root, list(allowed)).run()]

    def test_each_planted_violation_is_found(self):
        for rule, path, content, line in PLANTED:
            with self.subTest(rule=rule, path=path, content=content[:60]):
                self.assertEqual(self.findings({path: content}), [(rule, path, line)])

    def test_every_rule_has_a_plant(self):
        with open(os.path.join(os.path.dirname(__file__), "tidy.py"), encoding="utf-8") as file:
            import re

            rules = set(re.findall(r'self\.report\([^"]*"([a-z-]+)"', file.read()))
        self.assertEqual(rules, {plant[0] for plant in PLANTED})

    def test_clean_tree_has_no_findings(self):
        files = {
            "base/a.h": HEADER,
            "store/a.cc": '#include "base/a.h"\n\n#include <vector>\n\nvoid Seal() {\n  F();\n}\n',
            "store/CMakeLists.txt": "backstay_library(store SOURCES a.cc LINK backstay_base)\n",
            "replication/peer_grpc.cc": "#include <grpcpp/grpcpp.h>\n",
            "client/a.cc": "#include <protozero/pbf_reader.hpp>\n#include <sys/mman.h>\n#include <unistd.h>\n",
            "client/b.cc": "inline namespace v1 {\n" + "int a;\n" * 80 + "}\n",
            "docs/save_path.md": "`store/a.cc:Seal` in [a](../store/a.cc)\n",
            "build/x.h": "generated \n",
        }
        self.assertEqual(self.findings(files), [])

    def test_mention_of_a_missing_function_is_found(self):
        files = {"store/a.cc": "void Seal();\n", "docs/save_path.md": "`store/a.cc:Unseal`\n"}
        self.assertEqual(self.findings(files), [("mention", "docs/save_path.md", 1)])

    def test_attacks_need_tests_that_exist(self):
        files = {
            "docs/protocol.md": "* A rule. *Attack: it is\n  broken.* And *Attack: again.*\n",
            "docs/attacks.md": "| attack | tests | planted |\n|---|---|---|\n| it is broken | `SaveTest.Seals` | `bug` |\n",
            "tests/unit/save_test.cc": "TEST_F(SaveTest, Seals) {\n}\n",
            "tests/sim/planted/bug.patch": "",
        }
        self.assertEqual(self.findings(files), [("attack", "docs/protocol.md", 1)])
        files["docs/attacks.md"] += "| again | `KillTest.test_it` | |\n"
        self.assertEqual(self.findings(files), [("attack", "docs/attacks.md", 4)])
        files["tests/process/kill_test.py"] = "class KillTest(Base):\n    def test_it(self):\n"
        self.assertEqual(self.findings(files), [])
        del files["tests/sim/planted/bug.patch"]
        self.assertEqual(self.findings(files), [("attack", "docs/attacks.md", 3)])

    def test_exceptions_are_by_rule_and_path_and_must_be_used(self):
        files = {"store/a.cc": "#ifdef A\n#endif\n"}
        self.assertEqual(self.findings(files, [("ifdef", "store/*", "why")]), [])
        unused = ("allowed", "tests/tidy/allowed.py", 1)
        self.assertEqual(self.findings(files, [("ifdef", "base/*", "why")]), [("ifdef", "store/a.cc", 1), unused])


if __name__ == "__main__":
    unittest.main()
