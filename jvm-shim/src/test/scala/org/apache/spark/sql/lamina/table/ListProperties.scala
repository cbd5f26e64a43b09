package org.apache.spark.sql.lamina.table

import org.scalacheck.{Gen, Prop, Properties, Test}
import org.scalacheck.Prop.forAll

/** Lists that many versions append to, against a map, over random histories. */
object ListProperties extends Properties("lists") {
  import TableModel._

  override def overrideParameters(p: Test.Parameters): Test.Parameters =
    p.withMinSuccessfulTests(300).withMaxSize(120)

  private sealed trait Step
  private case class Append(key: String, value: String) extends Step {
    override def toString: String = s"Append($key,${value.take(1)}×${value.length})"
  }
  private case class Put(key: String, value: String) extends Step {
    override def toString: String = s"Put($key,${value.take(1)}×${value.length})"
  }
  private case class Remove(key: String) extends Step
  private case object Commit extends Step
  private case object Abort extends Step
  private case object StepBack extends Step
  private case object Maintain extends Step
  private case object Hold extends Step
  private case object Release extends Step
  private case object Check extends Step

  /** So few keys that each gets many appends, in lists that are copied, shared, and in pages of their own. */
  private val key = Gen.oneOf("a", "key b", "a longer key")
  private val letter = Gen.choose('a', 'z').map(_.toString)
  private val size = Gen.frequency(
    2 -> Gen.choose(0, 40),
    4 -> Gen.choose(100, 300),
    1 -> Gen.choose(1000, 5000),
    1 -> Gen.choose(60000, 140000)
  )
  private val step: Gen[Step] = Gen.frequency(
    30 -> (for (k <- key; n <- size; c <- letter) yield Append(k, c * n)),
    2 -> (for (k <- key; n <- size; c <- letter) yield Put(k, c * n)),
    2 -> key.map(Remove.apply),
    12 -> Gen.const(Commit),
    5 -> Gen.const(Abort),
    5 -> Gen.const(StepBack),
    4 -> Gen.const(Maintain),
    3 -> Gen.const(Hold),
    3 -> Gen.const(Release),
    4 -> Gen.const(Check)
  )

  private def run(model: TableModel, step: Step): Unit = step match {
    case Append(k, v) => model.append(k, v)
    case Put(k, v) => model.put(Lists, k, v)
    case Remove(k) => model.remove(Lists, k)
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
    model.checkEmptied()
  }

  property("appends in any history give what a map gives, and take no room when all is removed") =
    forAll(Gen.listOfN(120, step))(steps => withModel(model => steps.foreach(run(model, _))))

  property("reclaim moves lists, their versions and what readers hold") = Prop.all((1 to 16).map { seed =>
    withModel { model =>
      val random = new scala.util.Random(seed)
      val keys = 600
      for (version <- 1 to 25) {
        for (_ <- 1 to keys / 2) {
          val k = f"${random.nextInt(keys)}%05d"
          val v = random.nextPrintableChar().toString * random.nextInt(400)
          if (random.nextInt(12) == 0) model.remove(Lists, k) else model.append(k, v)
        }
        // so that whole ranges of pages have dead rows
        if (version % 5 == 0) for (k <- 0 until keys if random.nextInt(5) > 0) model.remove(Lists, f"$k%05d")
        if (random.nextInt(5) == 0) model.abort() else model.commit()
        if (random.nextInt(3) == 0) model.hold()
        model.maintain()
        if (random.nextInt(4) == 0) model.stepBack()
        if (random.nextInt(2) == 0) model.release()
        if (version % 3 == 0) model.check()
      }
    }
  }: _*)
}
