package org.apache.spark.sql.lamina

import org.scalatest.funsuite.AnyFunSuite

class StatePoolSuite extends AnyFunSuite {

  test("rows and blocks are within their budget, and blocks have some room whatever rows have") {
    for {
      budget <- Seq(1L << 20, 6L << 20, 8L << 20, 9L << 20, 256L << 20, 1L << 34)
      ofRows <- Seq(0.1, 0.5, 0.9, 0.999)
    } {
      val blocks = StatePools.blocksOf(budget, ofRows)
      assert(blocks >= math.min(4L << 20, budget / 2), (budget, ofRows))
      assert(blocks <= budget * math.max(1 - ofRows, 0.5) + 1, (budget, ofRows))
      if (budget * (1 - ofRows) > (4L << 20)) assert(math.abs(blocks - budget * (1 - ofRows)) <= 1, (budget, ofRows))
    }
  }
}
