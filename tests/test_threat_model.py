"""The threat model names a test for every known attack, and each of these tests exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/design/threat-model.md"


def test_each_attack_names_a_test_that_exists() -> None:
    _, _, section = PAGE.read_text(encoding="utf-8").partition("\n## Attacks\n")
    attacks: list[str] = re.findall(r"^- (.*?)(?=\n- |\n#|\n*\Z)", section, re.MULTILINE | re.DOTALL)
    named = [re.search(r":\s+`(test_\w+)`\s*$", attack) for attack in attacks]
    defined = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)\(", file.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert len(attacks) > 150
    assert [attack for attack, name in zip(attacks, named, strict=True) if not name or name[1] not in defined] == []
