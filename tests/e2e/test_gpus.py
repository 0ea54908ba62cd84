"""Several GPUs of one host are replicas behind one port: all of them work, and every answer is right."""
import tempfile
import threading
import time
import unittest

import grpc
import numpy as np
from harness import bert_reference, device, tiny_bert, triton
from harness import protobuf_bytes as pb
from harness.daemon import Daemon

CALLERS, CALLS, BURST = 16, 40, 256
INFER = "/inference.GRPCInferenceService/ModelInfer"


def by_device(metrics, name):
    """{device label: value} of one gauge."""
    prefix = name + "{device=\""
    return {key[len(prefix):].split('"')[0]: value for key, value in metrics.items() if key.startswith(prefix)}


def most_at_once(daemon, names):
    """{device: most requests seen waiting or running}, under bursts of more than one card takes up."""
    request = pb.infer_request("tiny", [pb.tensor("input_ids", "INT64", [1, 90])], [bytes(8 * 90)])
    most, end = dict.fromkeys(names, 0), time.monotonic() + 30
    with grpc.insecure_channel(daemon.address) as channel:
        infer = channel.unary_unary(INFER)
        while not all(most.values()) and time.monotonic() < end:
            futures = [infer.future(request, timeout=60) for _ in range(BURST)]
            for name, count in by_device(daemon.metrics(), "fusewire_device_queue_requests").items():
                most[name] = max(most[name], count)
            for future in futures:
                future.result()
    return most


@unittest.skipUnless(device.on_gpu(), "needs FUSEWIRE_TEST_DEVICE=cuda")
class GpusTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.model = tiny_bert.write(self.folder.name)
        self.reference = bert_reference.BertReference(self.folder.name)

    def call_from_many(self, daemon, failures):
        def work(seed):
            random = np.random.default_rng(seed)
            client = triton.connect(daemon)
            for _ in range(CALLS):
                ids = random.integers(0, tiny_bert.VOCABULARY, (1, random.integers(1, 100)))
                found = triton.infer(client, "tiny", {"input_ids": ids}).as_numpy("last_hidden_state")[0]
                expected = self.reference.hidden(ids[0])
                error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
                if not error < 2e-6:
                    failures.append(f"caller {seed}, {ids.shape}: {error}")
            client.close()

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(CALLERS)]
        for thread in threads:
            thread.start()
        return threads

    def test_every_gpu_works_and_every_answer_is_right(self):
        with Daemon([self.model]) as daemon:
            names = sorted(by_device(daemon.metrics(), "fusewire_device_queue_requests"))
            if len(names) < 2:
                self.skipTest(f"one GPU here: {names}")
            failures = []
            threads = self.call_from_many(daemon, failures)
            most = most_at_once(daemon, names)
            for thread in threads:
                thread.join()
            print(f"most requests seen at once: {most}")
            self.assertEqual(failures, [])
            self.assertTrue(all(count > 0 for count in most.values()), most)

    def test_device_gpus_chooses_which_ones_serve(self):
        with Daemon([self.model], {"device": {"gpus": "0"}}) as daemon:
            self.assertEqual(sorted(by_device(daemon.metrics(), "fusewire_device_queue_requests")), ["cuda:0"])
            client = triton.connect(daemon)
            ids = np.arange(7, dtype=np.int64)[None]
            found = triton.infer(client, "tiny", {"input_ids": ids}).as_numpy("last_hidden_state")[0]
            np.testing.assert_allclose(found, self.reference.hidden(ids[0]), atol=1e-4)
            client.close()
