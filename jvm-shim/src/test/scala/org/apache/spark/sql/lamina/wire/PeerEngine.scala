package org.apache.spark.sql.lamina.wire

import java.nio.file.{Files, Path}

import scala.jdk.CollectionConverters._
import scala.util.Using

/**
 * A small engine that speaks the wire protocol with pyarrow and py4j, and misbehaves when a request asks for it.
 *
 * It is started as the real one is (`python -m lamina.engine`), from a directory that is put first on the module
 * path. A commit is kept and is what `load` of the same handle sends back. The field `peer` of a header says what to do
 * instead.
 */
private[wire] final class PeerEngine(python: String = PeerEngine.python, script: String = PeerEngine.script) {
  val root: Path = Files.createTempDirectory("lamina-peer-")
  private val tempDir = Files.createDirectory(root.resolve("tmp"))

  private val module = Files.createDirectories(root.resolve("path/lamina/engine"))
  Files.createFile(module.getParent.resolve("__init__.py"))
  Files.createFile(module.resolve("__init__.py"))
  Files.writeString(module.resolve("__main__.py"), script)

  def settings(
      requestTimeoutMs: Long = 20000L,
      startTimeoutMs: Long = 30000L,
      connections: Int = 4,
      tempDir: Path = tempDir,
      raw: Map[String, String] = Map.empty
  ): ProcessSettings =
    ProcessSettings(
      python,
      Seq(root.resolve("path").toString),
      startTimeoutMs,
      requestTimeoutMs,
      connections,
      tempDir.toString,
      raw
    )

  /** What engines have left behind. */
  def leftBehind: Seq[Path] = Using.resource(Files.list(tempDir))(_.iterator.asScala.toList)

  def delete(): Unit = {
    val files = Using.resource(Files.walk(root))(_.iterator.asScala.toList)
    files.reverse.foreach(Files.delete)
  }
}

private[wire] object PeerEngine {

  /** An interpreter with pyarrow and py4j. */
  val python: String = sys.env.getOrElse("PYSPARK_PYTHON", "python3")

  val script: String =
    """import json, os, signal, socket, struct, sys, threading, time
      |import pyarrow as pa
      |from py4j.clientserver import ClientServer, JavaParameters, PythonParameters
      |
      |start = json.loads(sys.stdin.readline())
      |process = start["process"]
      |path = os.path.join(start["directory"], "data.sock")
      |if len(os.fsencode(path)) > 100:
      |    import tempfile
      |    path = os.path.join(tempfile.mkdtemp(dir="/tmp"), "data.sock")
      |kept = {}
      |cancelled = []
      |finish = threading.Event()
      |broken = {}
      |unanswered = []
      |stream = []
      |sockets = []
      |columns = [("cf", pa.uint16()), ("op", pa.uint8()), ("key", pa.binary()), ("value", pa.binary())]
      |schema = pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns])
      |
      |class Control:
      |    def hello(self, text):
      |        return json.dumps({"ok": True, "pid": os.getpid(), "maintenance_pid": None})
      |    def stats(self):
      |        shapes = {str(h): kept[h]["shape"] for h in kept}
      |        return json.dumps({"ok": True, "process": process, "kept": shapes, "cancelled": len(cancelled)})
      |    def begin(self, handle, text):
      |        argument = json.loads(text)
      |        if argument.get("peer") == "die":
      |            os.kill(os.getpid(), signal.SIGKILL)
      |        if argument.get("peer") == "raise":
      |            raise ValueError("boom")
      |        if argument.get("peer") == "hang":
      |            time.sleep(3600)
      |        return json.dumps({"ok": True, "handle": handle, "argument": argument})
      |    def closeStore(self, handle):
      |        error = {"kind": "store.closed", "message": "no store %d" % handle}
      |        return json.dumps({"ok": False, "error": error})
      |    def cancel(self, request):
      |        finish.set()
      |        cancelled.append(request)
      |        return json.dumps({"ok": True, "cancelled": True, "error": broken.pop(request, None)})
      |
      |def wait(request):
      |    finish.wait(60)
      |    finish.clear()
      |    error = {"kind": "engine.cancelled", "message": "cancelled"}
      |    stream[0]({"id": request, "ok": False, "error": error})
      |
      |def serve(sock):
      |    file = sock.makefile("rwb", buffering=1 << 16)
      |    def answer(header):
      |        body = json.dumps(header).encode()
      |        file.write(struct.pack("<I", len(body)) + body)
      |        file.flush()
      |    preamble = struct.pack("<4sHH", b"LMNW", 1, 0)
      |    if file.read(8) != preamble or file.read(64).decode() != start["token"]:
      |        sock.close()
      |        return
      |    file.write(preamble)
      |    file.flush()
      |    while True:
      |        length = file.read(4)
      |        if len(length) < 4:
      |            return
      |        header = json.loads(file.read(struct.unpack("<I", length)[0]))
      |        peer = header.get("peer")
      |        good = {"id": header["id"], "ok": True}
      |        if header["op"] == "commit":
      |            if peer == "refuse":
      |                answer({"id": header["id"], "ok": False, "error": {"kind": "state.base", "message": "refused"}})
      |                sock.shutdown(socket.SHUT_RDWR)
      |                return
      |            shape, batches = [], []
      |            for name in header["sections"]:
      |                with pa.ipc.open_stream(file) as reader:
      |                    assert reader.schema.equals(schema), reader.schema
      |                    for batch in reader:
      |                        if peer == "die":
      |                            os.kill(os.getpid(), signal.SIGKILL)
      |                        batch.validate(full=True)
      |                        shape.append([name, batch.num_rows, batch.nbytes])
      |                        batches.append(batch)
      |            if peer == "die-before-answer":
      |                os.kill(os.getpid(), signal.SIGKILL)
      |            if peer == "hang":
      |                time.sleep(3600)
      |            accepted = {**good, "accepted": header.get("attempt", "") + "-accepted"}
      |            if peer == "break-stream":
      |                sockets[0].shutdown(socket.SHUT_RDWR)
      |            if peer == "tell":
      |                failing = unanswered[len(unanswered) // 2]
      |                for request in reversed(unanswered):
      |                    known = {"ok": True, "durable": {"file": str(request)}}
      |                    if request == failing:
      |                        known = {"ok": False, "error": {"kind": "storage.failed", "message": "file %d" % request}}
      |                    stream[0]({"id": request, **known})
      |            if peer == "outcome-first":
      |                stream[0]({**good, "durable": {"file": "f"}})
      |            if peer in ("wait", "fail", "accept", "outcome-first", "die-after-acceptance"):
      |                answer(accepted)
      |            if peer == "wait":
      |                threading.Thread(target=wait, args=(header["id"],), daemon=True).start()
      |            elif peer == "fail":
      |                error = {"kind": "storage.denied", "message": "no"}
      |                stream[0]({"id": header["id"], "ok": False, "error": error})
      |            elif peer == "accept":
      |                unanswered.append(header["id"])
      |            elif peer == "die-after-acceptance":
      |                os.kill(os.getpid(), signal.SIGKILL)
      |            elif peer != "outcome-first":
      |                kept[header["handle"]] = {"shape": shape, "batches": batches}
      |                answer({**accepted, "durable": {"shape": shape, "header": header}})
      |        elif header["op"] == "outcomes":
      |            answer(good)
      |            stream[:] = [answer]
      |            sockets[:] = [sock]
      |            while file.read(1):
      |                pass
      |            return
      |        elif header["op"] == "ping":
      |            answer(good)
      |        else:
      |            if peer == "compressed":
      |                options = pa.ipc.IpcWriteOptions(compression="zstd")
      |            else:
      |                options = pa.ipc.IpcWriteOptions()
      |            batches = kept[header["handle"]]["batches"]
      |            sent = schema
      |            if header["op"] == "feed" and peer != "no-version":
      |                sent = schema.append(pa.field("version", pa.int64(), nullable=False))
      |                batches = [
      |                    pa.record_batch(list(b.columns) + [pa.array([40 + i] * b.num_rows, pa.int64())], schema=sent)
      |                    for i, b in enumerate(batches)]
      |            if peer == "extra":
      |                sent = pa.schema([pa.field("note", pa.utf8()), pa.field("weight", pa.float64())] + list(schema))
      |                batches = [
      |                    pa.record_batch([pa.array(["x"] * b.num_rows), pa.array([None] * b.num_rows, pa.float64())]
      |                                    + list(b.columns), schema=sent)
      |                    for b in batches]
      |            if peer == "slice":
      |                batches = [b.slice(i, 3) for b in batches for i in range(0, b.num_rows, 3)]
      |            answer({**good, "rows": sum(b.num_rows for b in batches), "start": "empty"})
      |            with pa.ipc.new_stream(file, sent, options=options) as writer:
      |                for batch in batches:
      |                    if peer == "stall":
      |                        time.sleep(3600)
      |                    writer.write_batch(batch)
      |                    if peer == "damage":
      |                        broken[header["id"]] = {"kind": "file.damaged", "message": "41_a.lam"}
      |                    if peer in ("break", "damage"):
      |                        print("ERROR the file is damaged", file=sys.stderr, flush=True)
      |                        file.flush()
      |                        sock.shutdown(socket.SHUT_RDWR)
      |                        return
      |            file.flush()
      |
      |def accept(server):
      |    while True:
      |        sock, _ = server.accept()
      |        threading.Thread(target=serve, args=(sock,), daemon=True).start()
      |
      |server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
      |server.bind(path)
      |server.listen(64)
      |threading.Thread(target=accept, args=(server,), daemon=True).start()
      |control = ClientServer(
      |    java_parameters=JavaParameters(port=0, auth_token=start["token"]),
      |    python_parameters=PythonParameters(
      |        port=0, daemonize=True, daemonize_connections=True, auth_token=start["token"]),
      |    python_server_entry_point=Control())
      |callbacks = control.get_callback_server()
      |callbacks.server_socket.listen()
      |port = callbacks.get_listening_port()
      |print("WARNING started", file=sys.stderr, flush=True)
      |print(json.dumps({
      |    "ok": True, "py4j_port": port, "socket": path, "pid": os.getpid(), "protocol": 1,
      |    "engine_version": process.get("version", start["shim_version"])}), flush=True)
      |print("x" * 200000, flush=True)
      |sys.stdin.read()
      |if process.get("lingers"):
      |    time.sleep(3600)
      |os._exit(0)
      |""".stripMargin
}
