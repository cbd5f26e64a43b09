package org.apache.spark.sql.lamina.table

import org.scalacheck.{Gen, Prop, Properties, Test}
import org.scalacheck.Prop.forAll

import org.apache.spark.sql.lamina.errors.LaminaError

/** The table against a map, over random histories. */
object TableProperties extends Properties("table") {
  import TableModel._

  override def overrideParameters(p: Test.Parameters): Test.Parameters =
    p.withMinSuccessfulTests(150).withMaxSize(120)

  private sealed trait Step
  private case class Put(family: Int, key: String, value: String) extends Step {
    override def toString: String = s"Put($family,$key,${value.take(9)}×${value.length})"
  }
  private case class Append(key: String, value: String) extends Step {
    override def toString: String = s"Append($key,${value.take(9)}×${value.length})"
  }
  private case class Remove(family: Int, key: String) extends Step
  private case class Range(from: Option[String], until: Option[String], base: Boolean) extends Step
  private case class Drop(family: Int) extends Step
  private case object Commit extends Step
  private case object Abort extends Step
  private case object StepBack extends Step
  private case object Maintain extends Step
  private case object Hold extends Step
  private case object Release extends Step
  private case object Check extends Step

  private val family = Gen.oneOf(Plain, Sorted, Lists)
  private val anyKey = Gen.frequency(
    6 -> Gen.choose(0, 30).map(i => ("k" * (i % 9)) + i),
    1 -> Gen.choose(0, 255).map(i => i.toChar.toString * (i % 4)),
    1 -> Gen.const("")
  )
  private val anyValue = Gen.frequency(
    8 -> Gen.choose(0, 90).flatMap(n => Gen.choose('a', 'c').map(_.toString * n)),
    1 -> Gen.choose(60000, 70000).map("v" * _)
  )
  private val bound = Gen.option(anyKey)
  private val step: Gen[Step] = Gen.frequency(
    30 -> (for (f <- family; k <- anyKey; v <- anyValue) yield Put(f, k, v)),
    12 -> (for (f <- family; k <- anyKey) yield Remove(f, k)),
    12 -> (for (k <- anyKey; v <- anyValue) yield Append(k, v)),
    4 -> (for (a <- bound; b <- bound; base <- Gen.oneOf(true, false)) yield Range(a, b, base)),
    1 -> family.map(Drop.apply),
    6 -> Gen.const(Commit),
    3 -> Gen.const(Abort),
    3 -> Gen.const(StepBack),
    4 -> Gen.const(Maintain),
    2 -> Gen.const(Hold),
    2 -> Gen.const(Release),
    6 -> Gen.const(Check)
  )

  private def run(model: TableModel, step: Step): Unit = step match {
    case Put(f, k, v) => model.put(f, k, v)
    case Append(k, v) => model.append(k, v)
    case Remove(f, k) => model.remove(f, k)
    case Range(from, until, base) => model.begin(); model.checkRange(from, until, base)
    case Drop(f) => model.dropFamily(f)
    case Commit => model.commit()
    case Abort => model.abort()
    case StepBack => model.stepBack()
    case Maintain => model.maintain()
    case Hold => model.hold()
    case Release => model.release()
    case Check => model.check()
  }

  private def withModel(body: TableModel => Unit): Prop = leavesNothing { model =>
    body(model)
    model.check()
    model.abort()
    model.check()
  }

  property("a random history gives what a map gives") = forAll(Gen.listOfN(200, step)) { steps =>
    withModel(model => steps.foreach(run(model, _)))
  }

  property("growth and reclaim lose nothing") = Prop.all((1 to 12).map { seed =>
    withModel { model =>
      val random = new scala.util.Random(seed)
      val keys = 1500 * seed
      for (version <- 1 to 12) {
        for (_ <- 1 to keys / 3) {
          val k = f"${random.nextInt(keys)}%08d"
          val f = if (random.nextInt(4) == 0) Sorted else Plain
          if (random.nextInt(5) == 0) model.remove(f, k) else model.put(f, k, "x" * random.nextInt(200))
        }
        if (random.nextInt(4) == 0) model.abort() else model.commit()
        if (random.nextInt(4) == 0) model.stepBack()
        if (random.nextInt(3) == 0) model.hold()
        model.maintain()
        if (random.nextInt(3) == 0) model.release()
      }
    }
  }: _*)

  property("reclaim bounds dead space") = Prop.all((1 to 3).map { seed =>
    withModel { model =>
      val random = new scala.util.Random(seed)
      for (i <- 0 until 20000) model.put(Plain, f"$i%08d", "x" * 56)
      model.commit()
      for (_ <- 1 to 60) {
        for (_ <- 1 to 2000) model.put(Plain, f"${random.nextInt(20000)}%08d", random.nextPrintableChar().toString * 56)
        model.commit()
        model.maintain()
        val memory = model.table.memory
        assert(
          memory.deadBytes <= memory.pageBytes * 35 / 100,
          s"${memory.deadBytes} of ${memory.pageBytes} bytes are dead"
        )
      }
    }
  }: _*)

  property("rows of one size take the place of dead ones, and nothing has to be moved for that") = Prop.delay {
    val model = new TableModel()
    try {
      val random = new scala.util.Random(1)
      val rows = 40000
      for (i <- 0 until rows) model.put(Plain, f"$i%08d", "x" * 56)
      model.commit()
      val full = model.table.memory.pageBytes
      for (_ <- 1 to 100) {
        for (_ <- 1 to 1000) model.put(Plain, f"${random.nextInt(rows)}%08d", random.nextPrintableChar().toString * 56)
        model.commit()
        while (model.table.maintain(0)) ()
      }
      val memory = model.table.memory
      model.check()
      // the page that is being filled counts as a whole
      Prop(
        memory.pageBytes <= full * 115 / 100 + PagePool.PageBytes
      ) :| s"pages grew from $full to ${memory.pageBytes} bytes" &&
      Prop(memory.deadBytes <= full * 15 / 100) :| s"${memory.deadBytes} of $full bytes are dead"
    } finally model.close()
  }

  property("a dead row's space is not used while its reader lives, and is used after that") = Prop.delay {
    val model = new TableModel()
    try {
      val rows = 5000
      def update(fill: String): Unit = {
        // a third of each page dies, so that no page is given up as a whole
        for (i <- 0 until rows by 3) model.put(Plain, f"$i%08d", fill * 20)
        model.commit()
        while (model.table.maintain(0)) ()
      }
      for (i <- 0 until rows) model.put(Plain, f"$i%08d", "first" * 20)
      model.commit()
      model.table.readersActive(7L)
      val handedOut = (0 until rows by 3).map { i =>
        val key = bytes(f"$i%08d")
        model.table.family(Plain).get(key, Base, key.length)
      }
      def intact: Boolean = handedOut.forall(row => value(row).contains("first" * 20))
      for (round <- 1 to 5) { update(s"next$round") }
      val whileReading = intact
      model.table.readersEnded(7L)
      for (round <- 1 to 3) update(s"last$round")
      model.check()
      Prop(whileReading) :| "used while its reader lived" && Prop(!intact) :| "never used again"
    } finally model.close()
  }

  /** Changes of so few keys that two transactions often leave the same; values of two sizes do not take each other's place. */
  private val change: Gen[Step] = {
    val few = Gen.oneOf("a", "b")
    val values = Gen.oneOf("x", "y" * 20, "z" * 20)
    Gen.frequency(
      4 -> (for (f <- family; k <- few; v <- values) yield Put(f, k, v)),
      4 -> (for (f <- family; k <- few) yield Remove(f, k)),
      1 -> (for (k <- few; v <- values) yield Append(k, v)),
      1 -> family.map(Drop.apply)
    )
  }
  private val changes = Gen.choose(0, 4).flatMap(Gen.listOfN(_, change))

  property("transactions on one base have one digest only where they leave the same rows") =
    forAll(Gen.listOfN(10, change), changes, Gen.listOfN(20, changes)) { (history, one, others) =>
      val model = new TableModel()
      try {
        history.foreach(run(model, _))
        model.commit()
        // what a transaction left, under its digest, and under the one that it has after another one was aborted
        def attempt(steps: Seq[Step]): Seq[(String, State)] = {
          steps.foreach(run(model, _))
          model.commit()
          val digest = model.table.lastDigest
          val left = model.state
          history.foreach(run(model, _))
          model.abort()
          model.maintain()
          val later = model.table.lastDigest
          model.stepBack()
          Seq(digest -> left, later -> left)
        }
        val all = attempt(one)
        assert(attempt(one) == all)
        val leftBy = (all ++ others.flatMap(attempt)).groupMap(_._1)(_._2)
        model.check()
        leftBy.values.forall(_.distinct.size == 1)
      } finally model.close()
    }

  property("a digest is the same while rows are being moved") = Prop.delay {
    val model = new TableModel()
    try {
      for (i <- 0 until 20000) model.put(Plain, f"$i%08d", "x" * 56)
      model.commit()
      for (i <- 0 until 20000 if i % 3 != 0) model.put(Plain, f"$i%08d", "y" * 100)
      model.commit()
      for (i <- 0 until 20000 by 9) model.remove(Plain, f"$i%08d")
      model.commit()
      val before = model.table.lastDigest
      // the space of rows that rest becomes free first
      while (model.table.maintain(0)) ()
      val moving = model.table.maintain(1)
      val same = model.table.lastDigest == before
      Prop(moving) :| "nothing moves" && Prop(same) :| "another digest"
    } finally model.close()
  }

  property("a digest does not depend on the order of the changes") = forAll(Gen.long) { seed =>
    def digest(order: Seq[Int], last: String): String = {
      val model = new TableModel()
      try {
        (0 until 100).foreach(i => model.put(Plain, s"key $i", "before"))
        model.commit()
        order.foreach { i =>
          if (i % 3 == 0) model.remove(Plain, s"key $i")
          else if (i % 3 == 1) model.put(Plain, s"key $i", s"$i") else model.append(s"$i", "x")
        }
        model.put(Plain, "last", last)
        model.commit()
        model.table.lastDigest
      } finally model.close()
    }
    val shuffled = new scala.util.Random(seed).shuffle((0 until 100).toVector)
    def twice(values: String*): String = {
      val model = new TableModel()
      try {
        values.foreach(model.put(Plain, "key", _))
        model.commit()
        model.table.lastDigest
      } finally model.close()
    }
    assert(twice("short", "long" * 10) != twice("long" * 10, "short"), "what it left is what counts")
    val one = digest(0 until 100, "a")
    Prop(one == digest(shuffled, "a")) && Prop(one != digest(shuffled, "b"))
  }

  /** Sends entries as a load does: announced as many at a time as it pleases who sends them, some not at all. */
  private def send(entries: Seq[(Int, Byte, String, String)], to: RestoredEntries): Unit =
    entries.grouped(7).zipWithIndex.foreach { case (group, number) =>
      if (number % 3 > 0) {
        group.take(5).foreach { case (f, _, k, _) => to.ahead(f, bytes(k), Base, k.length) }
        if (number % 3 > 1) to.fetch()
      }
      group.foreach { case (f, op, k, v) => to.entry(f, op, bytes(k), Base, k.length, bytes(v), Base, v.length) }
    }

  property("a version restored newest first, and what follows it oldest first, are what the changes give") =
    forAll(Gen.listOfN(12, Gen.listOfN(15, step)), Gen.choose(0, 12)) { (versions, restored) =>
      val source = new TableModel()
      val target = new TableModel()
      try {
        val increments = versions.map { steps =>
          steps.foreach {
            case s @ (_: Put | _: Append | _: Remove) => run(source, s)
            case _ => ()
          }
          source.begin()
          val entries = Vector.newBuilder[(Int, Byte, String, String)]
          source.table.changeSet { (f, op, kb, ko, kl, vb, vo, vl) =>
            entries += ((f, op, text(kb, ko, kl), text(vb, vo, vl)))
          }
          source.commit()
          (entries.result(), source.base)
        }
        def check(state: Map[(Int, String), String]): Unit = {
          target.base = state
          target.state = state
          target.check()
          target.checkRange(None, None, base = false)
        }
        val (whole, after) = increments.splitAt(restored)
        target.table.reserve(Plain, 500)
        val entries = new RestoredEntries(target.table)
        entries.start(onTop = false)
        send(whole.reverse.flatMap(_._1), entries)
        target.table.endFill()
        check(whole.lastOption.fold(Map.empty[(Int, String), String])(_._2))
        after.foreach { case (changes, state) =>
          val onTop = new RestoredEntries(target.table)
          target.table.begin()
          onTop.start(onTop = true)
          send(changes, onTop)
          target.table.commit()
          check(state)
        }
        Prop(target.snapshot() == source.base)
      } finally {
        source.close()
        target.close()
      }
    }

  property("parts of a rewrite are the version, whatever their number, each key always in the same one") =
    forAll(Gen.choose(1, 300), Gen.choose(0, 30000)) { (number, keys) =>
      val model = new TableModel()
      try {
        for (i <- 0 until keys) model.put(if (i % 3 == 0) Lists else Plain, s"key $i", s"$i")
        model.commit()
        val before = model.parts(number)
        for (i <- 0 until keys by 10) model.put(Plain, s"new $i", "x")
        for (i <- 0 until keys by 7) model.remove(Plain, s"key $i")
        val after = model.parts(number)
        model.commit()
        val stayed = before.zip(after).forall { case (old, now) =>
          now.keys.forall(k => old.contains(k) || k._2.startsWith("new"))
        }
        stayed && after.flatten.toMap == model.state
      } finally model.close()
    }

  property("the hash is the one that files know by its name") = Prop.delay {
    // the same figures as in tests/unit/format/test_golden_files.py, which has the specification's words in Python
    val hashes = Seq("", "a", "twelve bytes", "x" * 100).map { key =>
      KeyHash.hash(bytes(key), Base, key.length)
    }
    val parts = hashes.map(hash => Seq(1, 3, 16, 256).map(number => KeyHash.part(hash, number)))
    val expected = Seq(
      -7439127429289781049L,
      -1093194412166744295L,
      -7230302100138640279L,
      -3241748939359587446L
    )
    val expectedParts = Seq(Seq(0, 1, 9, 152), Seq(0, 2, 15, 240), Seq(0, 1, 9, 155), Seq(0, 2, 13, 211))
    val same = KeyHash.Name == "fold-1" && hashes == expected && parts == expectedParts
    Prop(same) :| s"another hash has another name: $hashes, $parts"
  }

  property("a row stays readable while its reader lives") = Prop {
    val model = new TableModel()
    try {
      for (i <- 0 until 5000) model.put(Plain, s"key $i", "first" * 20)
      model.commit()
      model.table.readersActive(7L)
      val key = bytes("key 17")
      val row = model.table.family(Plain).get(key, Base, key.length)
      def overwriteAll(fill: String): Unit = {
        for (i <- 0 until 5000) model.put(Plain, s"key $i", fill * 20)
        model.commit()
        for (_ <- 1 to 20) model.maintain()
      }
      for (round <- 1 to 5) overwriteAll(s"next$round")
      val whileReading = value(row)
      for (round <- 1 to 5) overwriteAll(s"more$round")
      val longAfter = value(row)
      whileReading.contains("first" * 20) && longAfter.contains("first" * 20)
    } finally model.close()
  }

  property("a value handed out is not overwritten by the transaction that reads it") = Prop {
    val model = new TableModel()
    try {
      model.put(Plain, "key", "before")
      val key = bytes("key")
      val row = model.table.family(Plain).get(key, Base, key.length)
      model.put(Plain, "key", "behind")
      value(row).contains("before") && model.get(Plain, "key").contains("behind")
    } finally model.close()
  }

  property("a cursor goes on while rows change and the index grows") = Prop {
    val model = new TableModel()
    try {
      for (i <- 0 until 1000) model.put(Plain, s"key $i", "old")
      model.commit()
      model.begin()
      val cursor = model.table.family(Plain).scan(startsAtBase = false)
      val seen = scala.collection.mutable.Set.empty[String]
      var row = cursor.next()
      while (row != 0L) {
        val name = keyOf(row)
        if (!name.startsWith("new")) {
          assert(seen.add(name), s"$name is there twice")
          for (i <- 0 until 20) model.put(Plain, s"new $name $i", "x" * 30)
          if (name.endsWith("7")) model.remove(Plain, name) else model.put(Plain, name, "changed")
        }
        row = cursor.next()
      }
      model.commit()
      model.check()
      seen.size == 1000
    } finally model.close()
  }

  property("the cap is an error that loses nothing") = Prop {
    val model = new TableModel(maxBytes = 6L << 20)
    try {
      for (i <- 0 until 2000) model.put(Plain, s"key $i", "x" * 100)
      model.commit()
      val kind =
        try {
          for (i <- 0 until 100000) model.put(Plain, s"more $i", "x" * 1000)
          "none"
        } catch { case e: LaminaError => e.kind }
      model.abort()
      model.check()
      kind == LaminaError.MemoryCap
    } finally model.close()
  }

  property("a row above the limit is refused and the transaction goes on") = Prop {
    val model = new TableModel()
    try {
      model.put(Plain, "key", "value")
      val kind =
        try {
          model.table.family(Plain).put(bytes("big"), Base, 3, null, 0L, Rows.MaxLength + 1)
          "none"
        } catch { case e: LaminaError => e.kind }
      model.commit()
      model.check()
      kind == LaminaError.RowTooLarge
    } finally model.close()
  }
}
