package org.apache.spark.sql.lamina.table

import java.util.concurrent.{CyclicBarrier, FutureTask}
import java.util.concurrent.atomic.AtomicLong

import scala.collection.mutable
import scala.util.Random

import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.unsafe.Platform

/** What the pool hands out is nobody else's, whatever its size, and what it counts is what is in memory. */
class PagePoolSuite extends AnyFunSuite {
  import PagePool._

  private def pool(pages: Int): PagePool = new PagePool(pages * PageBytes)

  /** One piece of memory, filled with a number at its start, in each page and at its end. */
  private final class Piece(val address: Long, val bytes: Long, number: Long) {
    private def marks = (0L to bytes - 8 by PageBytes) :+ (bytes - 8)
    marks.foreach(at => Platform.putLong(null, address + at, number))
    def isWhole: Boolean = marks.forall(at => Platform.getLong(null, address + at) == number)
  }

  test("pieces of any size keep what was written into them, and all can be given back") {
    for (seed <- 1 to 5) {
      val random = new Random(seed)
      val all = pool(4000)
      val pieces = mutable.ArrayBuffer.empty[Piece]
      for (number <- 1 to 6000) {
        if (pieces.nonEmpty && random.nextInt(100) < (if (number % 2000 < 1000) 40 else 60)) {
          val piece = pieces.remove(random.nextInt(pieces.length))
          assert(piece.isWhole, s"${piece.bytes} bytes, seed $seed")
          all.free(piece.address, piece.bytes)
        } else {
          val most = if (random.nextInt(50) == 0) PageBytes * 140 else if (random.nextInt(3) == 0) PageBytes else 2000L
          val bytes = all.sizeFor(8 + random.nextLong(most))
          assert(all.sizeFor(bytes) == bytes)
          pieces += new Piece(all.allocate(bytes), bytes, number)
        }
        assert(all.reservedBytes >= pieces.map(_.bytes).sum)
      }
      pieces.foreach { piece =>
        assert(piece.isWhole, s"${piece.bytes} bytes, seed $seed")
        all.free(piece.address, piece.bytes)
      }
      assert(all.reservedBytes <= PagesPerChunk * PageBytes, "no more than one chunk is kept")
      all.trim()
      assert(all.reservedBytes == 0)
    }
  }

  test("pages count from their first use, and those in memory are used before others") {
    val all = pool(400)
    val first = Seq.fill(10)(all.page())
    assert(all.reservedBytes == 10 * PageBytes)
    first.take(5).foreach(all.give(_))
    val second = Seq.fill(5)(all.page())
    assert(all.reservedBytes == 10 * PageBytes)
    val large = all.largePage(3 * PageBytes)
    assert(large.bytes == 3 * PageBytes + UnitBytes && all.reservedBytes == 10 * PageBytes + large.bytes)
    (first.drop(5) ++ second :+ large).foreach(all.give(_))
    assert(all.reservedBytes == 13 * PageBytes + UnitBytes)
    all.trim()
    assert(all.reservedBytes == 0)
  }

  test("threads that ask at once for pieces of one size leave no page behind") {
    val all = pool(4000)
    val kept = new AtomicLong()
    val begin = new CyclicBarrier(8, () => { all.trim(); kept.addAndGet(all.reservedBytes) })
    val taken = (1 to 8).map { seed =>
      new FutureTask[Unit](() => {
        val random = new Random(seed)
        for (round <- 1 to 2000) {
          // two cells to a page, and few of them at a time: most of these need another page
          begin.await()
          val cells = Seq.fill(1 + random.nextInt(3))(all.allocate(Cells.MaxBytes))
          cells.foreach(Platform.putLong(null, _, seed))
          assert(cells.forall(Platform.getLong(null, _) == seed))
          cells.foreach(all.free(_, Cells.MaxBytes))
        }
      })
    }
    taken.foreach(new Thread(_).start())
    taken.foreach(_.get())
    assert(kept.get == 0, "bytes, when nobody had any")
  }

  test("the cap is passed by no page, whatever is asked for") {
    val small = pool(6)
    val pages = Seq.fill(5)(small.page())
    assert(intercept[LaminaError](small.largePage(2 * PageBytes)).kind == LaminaError.MemoryCap)
    val cell = small.allocate(100)
    assert(intercept[LaminaError](small.page()).kind == LaminaError.MemoryCap)
    assert(small.reservedBytes == 6 * PageBytes)
    pages.foreach(small.give(_))
    small.free(cell, 100)
    assert(small.largePage(5 * PageBytes).bytes == 5 * PageBytes + UnitBytes)
  }
}
