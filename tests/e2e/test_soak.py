"""Seconds of what `./dev bench soak` does for minutes: every kind of abuse beside honest load, then the sums."""
import unittest

from harness import device, soak
from harness.daemon import sanitized


class SoakTest(unittest.TestCase):
    def test_abuse_beside_honest_load_breaks_no_law(self):
        if device.on_gpu():
            self.skipTest("it is about the transport")
        lines = []
        problems = soak.run(8 if sanitized() else 6, lines.append, seed=4)
        print("\n".join(lines))
        self.assertEqual(problems, [])


if __name__ == "__main__":
    unittest.main()
