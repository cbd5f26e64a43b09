package org.apache.spark.sql.lamina.wire

import scala.util.Random

import org.json4s.JsonAST.{JArray, JInt, JObject, JString}
import org.json4s.JsonDSL._

import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.sql.lamina.table.EntrySink
import org.apache.spark.unsafe.Platform

/** What this side writes is what pyarrow reads, and the other way round, for entries of every size. */
class EntryStreamSuite extends EngineFixture {
  private val random = new Random(7)

  private def entry(keyBytes: Int, valueBytes: Int): Entry =
    Entry(random.nextInt(65536), 1 + random.nextInt(3), random.nextBytes(keyBytes), random.nextBytes(valueBytes))

  private def shapes(answer: org.json4s.JValue): Seq[(String, Long, Long)] = (answer \ "shape" match {
    case JArray(batches) => batches
    case other => fail(s"no shape: $other")
  }).map {
    case JArray(List(JString(name), JInt(rows), JInt(bytes))) => (name, rows.toLong, bytes.toLong)
    case other => fail(s"no shape: $other")
  }

  test("entries of all lengths from 0 to 300 bytes come back as they were sent") {
    val engine = Engine.get(peer.settings())
    val entries = (0 to 300).map(length => entry(length, 300 - length)) ++ (0 to 300).map(entry(_, 0))
    commit(engine, entries)
    assert(loaded(engine) == entries)
  }

  test("an entry whose column family does not fit the format is refused, not sent as another one's") {
    val engine = Engine.get(peer.settings())
    val error = intercept[LaminaError](commit(engine, Seq(Entry(65536, 1, Array[Byte](1), Array[Byte](2)))))
    assert(error.kind == LaminaError.StoreUnsupported && error.getMessage.contains("65536"))
    val last = Seq(Entry(65535, 1, Array[Byte](1), Array[Byte](2)))
    commit(engine, last)
    assert(loaded(engine) == last)
  }

  test("empty keys, empty values, and a section without entries") {
    val engine = Engine.get(peer.settings())
    Seq(Seq(entry(0, 0)), Seq(entry(0, 0), entry(0, 5), entry(5, 0)), Seq.empty).foreach { entries =>
      commit(engine, entries)
      assert(loaded(engine) == entries)
    }
  }

  test("a value of 64 MiB and more stands alone in its batch") {
    val engine = Engine.get(peer.settings())
    val large = entry(64 << 20, (64 << 20) + 13)
    val entries = Seq(entry(10, 10), large, entry(20, 20))
    val rows = shapes(commit(engine, entries)).map(_._2)
    assert(rows == Seq(1, 1, 1))
    assert(loaded(engine) == entries)
  }

  test("a large section is split into batches below 64 MiB of keys and of values") {
    val engine = Engine.get(peer.settings())
    val entries = (0 until 300).map(_ => entry(100, 300000))
    val split = shapes(commit(engine, entries))
    assert(split.map(_._2).sum == 300)
    assert(split.size > 1 && split.forall(_._3 < (64 << 20)))
    assert(loaded(engine) == entries)
  }

  test("a section of very many tiny entries is split too") {
    val engine = Engine.get(peer.settings())
    val rows = 2500000
    val key = Array[Byte](1, 2, 3)
    val base = Platform.BYTE_ARRAY_OFFSET.toLong
    engine.commit(
      header,
      Seq("increment" -> { sink =>
        (0 until rows).foreach(_ => sink.entry(9, 2, key, base, 3, key, base, 0))
      })
    ).await()
    var seen = 0
    engine.load(header ~ ("op" -> "load"))(_ => ()) { (family, op, _, address, keyLength, _, _, valueLength) =>
      assert(family == 9 && op == 2 && keyLength == 3 && valueLength == 0 && Platform.getByte(null, address + 2) == 3)
      seen += 1
    }
    assert(seen == rows)
  }

  test("two sections of one commit arrive under their names, also when the first does not fit one batch") {
    val engine = Engine.get(peer.settings())
    val large = (0 until 100).map(_ => entry(10, 300000))
    val small = Seq(entry(1, 1))
    Seq(small -> large, large -> small).foreach { case (increment, snapshot) =>
      val answer = engine.commit(
        header,
        Seq("increment" -> Entry.fill(increment) _, "snapshot" -> Entry.fill(snapshot) _)
      ).await()
      assert(shapes(answer).map(_._1).distinct == Seq("increment", "snapshot"))
      assert(loaded(engine) == increment ++ snapshot)
    }
  }

  test("each section is collected once, and the header says what the first amounted to where one batch holds that") {
    val engine = Engine.get(peer.settings())
    Seq(10, 100).foreach { rows =>
      var collected = Seq.empty[String]
      var asked = 0
      def section(name: String) = name -> ((sink: EntrySink) => {
        Entry.fill(Seq.fill(rows)(Entry(0, 1, Array[Byte](1), new Array[Byte](300000))))(sink)
        collected :+= name
      })
      val pending = engine.commit(
        () => {
          asked += 1
          header ~ ("rows" -> collected.map(_ -> rows).toMap)
        },
        Seq(section("increment"), section("snapshot"))
      )
      val answer = pending.fold(begun => fail(s"$begun"), _.await())
      assert(collected == Seq("increment", "snapshot") && asked == 1)
      val fits = rows == 10
      assert(answer \ "header" \ "rows" == JObject(if (fits) List("increment" -> JInt(rows)) else Nil))
      assert(shapes(answer).groupMapReduce(_._1)(_._2)(_ + _) == Map("increment" -> rows, "snapshot" -> rows))
    }
  }

  test("a section that fails while it is collected fails its commit alone, whether its first batch was sent or not") {
    val engine = Engine.get(peer.settings())
    Seq(10, 100).foreach { rows =>
      val error = intercept[IllegalStateException](engine.commit(
        header,
        Seq("increment" -> { sink =>
          Entry.fill(Seq.fill(rows)(Entry(0, 1, Array[Byte](1), new Array[Byte](300000))))(sink)
          throw new IllegalStateException("no more")
        })
      ))
      assert(error.getMessage == "no more")
      val entries = Seq(entry(1, 1))
      commit(engine, entries)
      assert(loaded(engine) == entries)
    }
  }

  test("batches that pyarrow sliced, and columns that are not known, are read") {
    val engine = Engine.get(peer.settings())
    val entries = (0 until 100).map(length => entry(length, 2 * length))
    commit(engine, entries)
    assert(loaded(engine, "slice") == entries)
    assert(loaded(engine, "extra") == entries)
  }

  test("each key is announced once before its entry, in their order, few at a time") {
    val engine = Engine.get(peer.settings())
    val entries = (0 until 1000).map(_ => entry(1 + random.nextInt(50), 100))
    commit(engine, entries)
    var fetched = 0
    val announced, read = scala.collection.mutable.ArrayBuffer.empty[(Int, Seq[Byte])]
    engine.load(header ~ ("op" -> "load"))(_ => ())(new EntrySink {
      override def ahead(family: Int, keyBase: AnyRef, key: Long, keyLength: Int): Unit =
        announced += family -> Entry.bytes(key, keyLength)

      override def fetch(): Unit = fetched = announced.size

      override def entry(f: Int, o: Byte, kb: AnyRef, key: Long, keyLength: Int, vb: AnyRef, v: Long, vl: Int): Unit = {
        read += f -> Entry.bytes(key, keyLength)
        assert(announced(read.size - 1) == read.last && announced.size - read.size < EntrySink.MostAhead)
        assert(fetched == announced.size)
      }
    })
    assert(read == entries.map(one => one.family -> one.key) && announced == read)
  }

  test("a feed takes as long as its reader: the deadline is for each piece of it") {
    val engine = Engine.get(peer.settings(requestTimeoutMs = 3000))
    val large = (0 until 8).map(_ => Entry(0, 1, Array[Byte](1), new Array[Byte](512 << 10)))
    commit(engine, large)
    var read = 0
    engine.feed(header)(_ => ()) { (_, _, _, _, _, _, _) =>
      Thread.sleep(600)
      read += 1
    }
    assert(read == large.size)
    assert(kindOf(engine.feed(header ~ ("peer" -> "stall"))(_ => ())((_, _, _, _, _, _, _) => ())) ==
      LaminaError.EngineDeadline)
  }

  test("a feed carries the version of each entry") {
    val engine = Engine.get(peer.settings())
    val entries = (0 until 100).map(_ => entry(8, 300000))
    commit(engine, entries)
    val read = Seq.newBuilder[Entry]
    engine.feed(header)(answer => assert(answer \ "rows" == JInt(100))) {
      (version, family, op, key, keyLength, value, valueLength) =>
        read += Entry(family, op, Entry.bytes(key, keyLength), Entry.bytes(value, valueLength), version)
    }
    val result = read.result()
    assert(result.map(_.copy(version = -1)) == entries)
    assert(result.map(_.version).distinct == Seq(40, 41))
    val error = intercept[LaminaError](
      engine.feed(header ~ ("peer" -> "no-version"))(_ => ())((_, _, _, _, _, _, _) => ())
    )
    assert(error.kind == LaminaError.EngineProtocol && error.getMessage.contains("version"))
  }

  test("a compressed stream is refused, and the next request works") {
    val engine = Engine.get(peer.settings())
    commit(engine, Seq(entry(100, 100)))
    assert(kindOf(loaded(engine, "compressed")) == LaminaError.EngineProtocol)
    assert(loaded(engine).size == 1)
  }

  test("no damaged stream makes the reader read outside its buffer") {
    val stream = new java.io.ByteArrayOutputStream
    val sink = new ByteSink {
      override def add(bytes: java.nio.ByteBuffer): Unit = while (bytes.hasRemaining) stream.write(bytes.get().toInt)
      override def flush(): Unit = ()
    }
    val writer = new ChangeWriter
    writer.hold(() => sink)
    Entry.fill((0 until 20).map(length => entry(length, length)))(writer)
    writer.finish(sink)
    val good = stream.toByteArray
    val reader = new EntryReader
    def read(bytes: Array[Byte]): Long = {
      val source = java.nio.ByteBuffer.wrap(bytes)
      reader.read(
        to => while (to.hasRemaining) if (source.hasRemaining) to.put(source.get()) else throw new java.io.EOFException,
        new EntrySink {
          override def ahead(family: Int, keyBase: AnyRef, key: Long, keyLength: Int): Unit =
            Entry.bytes(key, keyLength)

          override def entry(f: Int, o: Byte, kb: AnyRef, key: Long, kl: Int, vb: AnyRef, value: Long, vl: Int)
              : Unit = {
            Entry.bytes(key, kl)
            Entry.bytes(value, vl)
            ()
          }
        }
      )
    }
    assert(read(good) == 20)
    (0 until 20000).foreach { _ =>
      val bad = good.clone()
      (0 to random.nextInt(3)).foreach(_ => bad(random.nextInt(bad.length)) = random.nextInt(256).toByte)
      try read(bad)
      catch {
        case error: LaminaError => assert(error.kind == LaminaError.EngineProtocol)
        case _: java.io.EOFException => ()
      }
    }
    writer.free()
    reader.free()
  }

  test("buffers give back what one large entry made them take") {
    val before = DirectBuffer.totalBytes
    val engine = Engine.get(peer.settings())
    commit(engine, Seq(entry(10, 100 << 20)))
    assert(loaded(engine).size == 1)
    assert(engine.bufferBytes - before < (4 << 20))
    Engine.shutdown()
    assert(DirectBuffer.totalBytes == before)
  }
}
