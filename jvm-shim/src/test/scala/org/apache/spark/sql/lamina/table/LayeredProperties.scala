package org.apache.spark.sql.lamina.table

import org.scalacheck.{Gen, Prop, Properties, Test}
import org.scalacheck.Prop.forAll

import org.apache.spark.sql.lamina.errors.LaminaError

/** A table with a state below it against a map, over random histories in which the state below changes and rows are forgotten. */
object LayeredProperties extends Properties("layered table") {
  import TableModel._

  override def overrideParameters(p: Test.Parameters): Test.Parameters =
    p.withMinSuccessfulTests(250).withMaxSize(120)

  private type Step = TableModel => Unit

  private def step(name: String)(run: Step): Step = new Step {
    override def apply(model: TableModel): Unit = run(model)
    override def toString: String = name
  }

  private val family = Gen.oneOf(Families)
  private val key = Gen.frequency(
    6 -> Gen.choose(0, 20).map(i => ("k" * (i % 5)) + i),
    1 -> Gen.choose(0, 255).map(i => i.toChar.toString * (i % 4)),
    1 -> Gen.const("")
  )
  private val value = Gen.frequency(
    8 -> Gen.choose(0, 60).flatMap(n => Gen.choose('a', 'c').map(_.toString * n)),
    1 -> Gen.choose(1000, 3000).map("v" * _)
  )
  private val bound = Gen.option(key)

  /** Families whose rows are all in memory. */
  private val inMemory = Gen.frequency(3 -> Gen.const(Set.empty[Int]), 2 -> Gen.someOf(Families).map(_.toSet))

  /** Those of one transaction, whatever becomes of its memory. */
  private val within: Seq[(Int, Gen[Step])] = Seq(
    24 -> (for (f <- family; k <- key; v <- value)
      yield step(s"put $f $k ${v.take(3)}×${v.length}")(_.put(f, k, v))),
    14 -> (for (f <- family; k <- key) yield step(s"remove $f $k") { model => model.remove(f, k); () }),
    10 -> (for (k <- key; v <- value) yield step(s"append $k ${v.take(3)}×${v.length}")(_.append(k, v))),
    1 -> family.map(f => step(s"drop $f")(_.dropFamily(f))),
    6 -> Gen.const(step("spill")(_.spill())),
    3 -> Gen.const(step("relieve")(_.relieve()))
  )
  private val stepWithin: Gen[Step] = Gen.frequency(within: _*)
  private val anyStep: Gen[Step] = Gen.frequency(
    within ++ Seq[(Int, Gen[Step])](
      4 -> (for (a <- bound; b <- bound; base <- Gen.oneOf(true, false))
        yield step(s"range $a $b $base") { model => model.begin(); model.checkRange(a, b, base) }),
      8 -> Gen.const(step("commit") { model => model.commit(); () }),
      3 -> Gen.const(step("abort")(_.abort())),
      3 -> Gen.const(step("step back") { model => model.stepBack(); () }),
      3 -> Gen.const(step("maintain")(_.maintain())),
      2 -> Gen.const(step("hold")(_.hold())),
      2 -> Gen.const(step("release")(_.release())),
      6 -> Gen.oneOf(true, false).map(newest => step(s"raise $newest")(_.raise(newest))),
      4 -> Gen.const(step("cut")(_.cut())),
      6 -> Gen.const(step("forget")(_.forget())),
      2 -> Gen.const(step("commit without scans") { model =>
        for (_ <- 0 to LabelledKeys.KeptUnscanned) model.commit()
      }),
      2 -> Gen.const(step("send in vain")(_.sendInVain())),
      4 -> Gen.const(step("check")(_.check()))
    ): _*
  )

  property("a random history gives what a map gives") = forAll(Gen.listOfN(200, anyStep), inMemory) { (steps, held) =>
    leavesNothing(
      { model =>
        steps.foreach(_(model))
        model.check()
        model.abort()
        model.check()
      },
      layered = true,
      held
    )
  }

  property("rows that come, go and come below during a scan are seen once, and all others") =
    forAll(Gen.listOfN(40, Gen.zip(family, key, value)), Gen.listOfN(30, anyStep), Gen.choose(1, 5)) {
      (rows, steps, every) =>
        leavesNothing(
          { model =>
            rows.foreach { case (f, k, v) => model.put(f, k, v) }
            model.commit()
            for (f <- Families) {
              model.abort()
              val before = model.state.keySet.collect { case (`f`, k) => k }
              var (there, changed) = (before, Set.empty[String])
              val cursor = model.table.family(f).scan(startsAtBase = false)
              var seen = Vector.empty[String]
              var left = steps
              var row = cursor.next()
              while (row != 0L) {
                seen :+= keyOf(row)
                if (seen.size % every == 0 && left.nonEmpty) {
                  left.head(model)
                  left = left.tail
                  val now = model.state.keySet.collect { case (`f`, k) => k }
                  changed ++= (there -- now) ++ (now -- there)
                  there = now
                }
                row = cursor.next()
              }
              assert(seen.distinct.size == seen.size, "a key was seen twice")
              val missed = (before & there) -- changed -- seen
              assert(missed.isEmpty, s"$missed were passed over")
            }
            while (model.stepBack()) ()
          },
          layered = true
        )
    }

  property("keys that come during a scan of a range are not seen by it, and those that were there and stay are") =
    forAll(
      Gen.listOfN(40, Gen.zip(family, key, value)),
      Gen.listOfN(40, stepWithin),
      Gen.choose(1, 5),
      Gen.oneOf(true, false)
    ) { (rows, steps, every, layered) =>
      leavesNothing(
        { model =>
          rows.take(25).foreach { case (f, k, v) => model.put(f, k, v) }
          model.commit()
          model.begin()
          rows.drop(25).foreach { case (f, k, v) => model.put(f, k, v) }
          for (f <- Families if model.table.family(f).ordered) {
            val before = model.state.keySet.collect { case (`f`, k) => k }
            var (there, left) = (before, steps)
            val cursor = model.table.family(f).range(null, null, startsAtBase = false)
            var seen = Vector.empty[String]
            def changes(): Unit = if (left.nonEmpty) {
              left.head(model)
              left = left.tail
              there &= model.state.keySet.collect { case (`f`, k) => k }
            }
            changes()
            var row = cursor.next()
            while (row != 0L) {
              seen :+= keyOf(row)
              if (seen.size % every == 0) changes()
              row = cursor.next()
            }
            cursor.end()
            assert(seen.distinct.size == seen.size, "a key was seen twice")
            assert((seen.toSet -- before).isEmpty, s"${seen.toSet -- before} came since")
            assert((there -- seen).isEmpty, s"${there -- seen} were passed over")
          }
          model.abort()
        },
        layered
      )
    }

  property("a key that is changed, spilled, forgotten and changed again is in the base what it was") =
    leavesNothing(
      { model =>
        Families.foreach(model.put(_, "k", "1"))
        model.commit()
        Families.foreach(model.put(_, "k", "2"))
        model.spill()
        model.relieve()
        Families.foreach(model.put(_, "k", "3"))
        model.append("k", "4")
        model.check()
        Families.foreach(model.remove(_, "k"))
        model.check()
        Families.foreach(model.put(_, "k", "1"))
        model.check()
        model.commit()
        model.check()
      },
      layered = true
    )

  property("rows that come below during a scan, and are known from there only, are seen") =
    leavesNothing(
      { model =>
        Seq("a", "m", "z").foreach(model.put(Plain, _, "1"))
        model.commit()
        model.cut()
        model.raise(newest = true)
        Seq("b", "c", "n", "y").foreach(model.put(Plain, _, "2"))
        model.commit()
        val cursor = model.table.family(Plain).scan(startsAtBase = false)
        var seen = Vector(keyOf(cursor.next()))
        model.cut()
        model.raise(newest = true)
        model.maintain()
        model.forget()
        var row = cursor.next()
        while (row != 0L) {
          seen :+= keyOf(row)
          row = cursor.next()
        }
        assert(seen == Vector("a", "b", "c", "m", "n", "y", "z"), s"seen were $seen")
      },
      layered = true
    )

  property("a table of a state below and the changes after it is that of all changes") =
    forAll(Gen.listOfN(150, anyStep), Gen.listOfN(40, Gen.zip(Gen.oneOf(0, 1, 2), family, key, value)), inMemory) {
      (steps, last, held) =>
        leavesNothing(
          { model =>
            steps.foreach(_(model))
            model.commit()
            val below = model.base
            var changes = Vector.empty[(Byte, Int, String, String)]
            last.grouped(10).foreach { transaction =>
              transaction.foreach {
                case (0, f, k, v) => model.put(f, k, v)
                case (1, f, k, _) => model.remove(f, k)
                case (_, _, k, v) => model.append(k, v)
              }
              var increment = Vector.empty[(Byte, Int, String, String)]
              model.table.changeSet { (f, op, keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength) =>
                increment :+=
                  ((op, f, text(keyBase, keyOffset, keyLength), text(valueBase, valueOffset, valueLength)))
              }
              changes = increment ++ changes
              model.commit()
            }
            model.restore(changes, below, 1L << 40)
            model.check()
            steps.foreach(_(model))
            model.check()
          },
          layered = true,
          held
        )
    }

  property("growth and reclaim lose nothing while rows are forgotten") = Prop.all((1 to 8).map { seed =>
    leavesNothing(
      { model =>
        val random = new scala.util.Random(seed)
        val keys = 1500 * seed
        for (_ <- 1 to 12) {
          for (_ <- 1 to keys / 3) {
            val k = f"${random.nextInt(keys)}%08d"
            random.nextInt(6) match {
              case 0 => model.remove(if (random.nextBoolean()) Plain else Lists, k)
              case 1 => model.put(Sorted, k, "x" * random.nextInt(200))
              case 2 => model.append(k, "y" * random.nextInt(300))
              case _ => model.put(Plain, k, "x" * random.nextInt(200))
            }
            if (random.nextInt(2000) == 0) model.spill()
          }
          if (random.nextInt(4) == 0) model.abort() else model.commit()
          if (random.nextInt(4) == 0) model.stepBack()
          if (random.nextInt(3) == 0) model.hold()
          if (random.nextInt(2) == 0) model.cut()
          if (random.nextInt(2) == 0) model.raise(newest = random.nextBoolean())
          model.maintain()
          if (random.nextInt(2) == 0) model.forget()
          if (random.nextInt(3) == 0) model.release()
        }
        model.check()
      },
      layered = true
    )
  }: _*)

  property("where memory is short, and the disk is sometimes full, a transaction is done or has not been") =
    Prop.all((1 to 8).map(seed => shortOfMemory(seed)): _*)

  private def shortOfMemory(seed: Int): Prop = {
    val model = new TableModel(maxBytes = 3L << 20, layered = true)
    val random = new scala.util.Random(seed)
    // half of the histories have a disk that is never full
    if (seed % 2 == 0) model.diskFails = () => random.nextInt(5000) == 0
    var failed = 0
    var spills = 0

    /** Whether it was done; the disk may be full, and nothing else fails. */
    def tried(work: => Unit): Boolean =
      try {
        work
        true
      } catch {
        case error: LaminaError if error.kind == LaminaError.StorageFailed =>
          failed += 1
          false
      }

    for (_ <- 1 to 25) {
      val isChanged = tried {
        for (_ <- 1 to 3000) {
          val k = f"${random.nextInt(9000)}%08d"
          random.nextInt(6) match {
            case 0 => model.remove(if (random.nextBoolean()) Plain else Lists, k)
            case 1 => model.put(Sorted, k, "x" * random.nextInt(200))
            case 2 => model.append(k, "y" * random.nextInt(300))
            case 3 => assert(model.get(Plain, k) == model.state.get((Plain, k)))
            case _ => model.put(Plain, k, "x" * random.nextInt(400))
          }
        }
      }
      val isDone = isChanged && tried {
        if (random.nextInt(4) == 0) model.checkRange(Some("00001000"), Some("00001500"), base = random.nextBoolean())
        if (model.table.isSpilled) spills += 1
        if (random.nextInt(4) == 0) model.abort() else model.commit()
      }
      if (!isDone) model.abort()
      if (random.nextInt(3) == 0) tried(model.relieve())
      if (random.nextInt(4) == 0) model.cut()
      if (random.nextInt(4) == 0) model.raise(newest = random.nextBoolean())
      model.forget()
      // reclaim takes no memory of others
      try model.maintain()
      catch { case error: LaminaError if error.kind == LaminaError.MemoryCap => () }
      assert(model.state == model.base)
      for (family <- Families)
        assert(model.table.rows(family) == model.state.keys.count(_._1 == family), s"rows of family $family")
    }
    model.diskFails = () => false
    model.check()
    model.close()
    model.pool.trim()
    Prop(spills > 5 && model.pool.reservedBytes == 0 && (seed % 2 == 0) == (failed > 0)) :|
      s"seed $seed: $spills transactions spilled, $failed failed, ${model.pool.reservedBytes} bytes stay in use"
  }

  property("what is below can be forgotten, however often something comes below, whatever was told apart") = {
    // versions that are told apart before the newest one comes below
    def left(cuts: Int): Long = {
      val model = new TableModel(layered = true)
      val least = for (round <- 0 until 9) yield {
        for (part <- 0 to cuts) {
          for (i <- part until 20000 by cuts + 1) model.put(Plain, f"${round * 15000 + i}%08d", "x" * 56)
          model.commit()
          if (part < cuts) model.cut()
        }
        model.raise(newest = true)
        model.forget()
        model.begin()
        model.abort()
        while (model.table.maintain(100)) ()
        model.table.memory.total
      }
      model.check()
      model.close()
      least.max
    }
    val most = (0 to 3).map(left).max
    Prop(most < (1L << 20)) :| s"$most bytes are left"
  }

  property("what is forgotten takes no memory, and is read again") = Prop.delay {
    val model = new TableModel(layered = true)
    for (i <- 0 until 20000) model.put(Plain, f"$i%08d", "x" * 56)
    model.commit()
    model.cut()
    val full = model.table.memory.total
    model.raise(newest = true)
    model.forget()
    model.begin()
    model.abort()
    while (model.table.maintain(100)) ()
    val empty = model.table.memory.total
    model.check()
    model.close()
    Prop(empty < full / 4) :| s"$empty of $full bytes are left"
  }
}
