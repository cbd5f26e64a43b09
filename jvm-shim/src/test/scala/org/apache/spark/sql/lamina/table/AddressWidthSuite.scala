package org.apache.spark.sql.lamina.table

import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.lamina.errors.LaminaError

/** Rows are found wherever the system puts them. */
class AddressWidthSuite extends AnyFunSuite {
  private def newPool(): PagePool = new PagePool(1L << 30)

  /** Addresses of rows as systems have them: x86-64 below 2^47, arm64 below 2^48. */
  private val addresses =
    for (bits <- 20 to 47; low <- Seq(0L, 8L, 0x12345678L & ~7L, (1L << bits) - 8))
      yield (1L << bits) | (low & ((1L << bits) - 8))

  test("a slot names any row below 2^48, removed or not") {
    val pool = newPool()
    for (row <- addresses; removed <- Seq(false, true)) {
      val index = new HashIndex(pool)
      val hash = row * 0x9e3779b97f4a7c15L
      index.ensure(hash)
      assert(index.find(hash, null, 0L, 0) == 0L)
      index.insert(hash, row, removed)
      val word = index.first(hash)
      assert(HashIndex.rowOf(word) == row, f"$row%x became ${HashIndex.rowOf(word)}%x")
      assert(HashIndex.isRemoved(word) == removed && HashIndex.mayBe(word, hash))
      index.close()
    }
  }

  /** A system whose memory is at the addresses given; nothing reads or writes there. */
  private final class Elsewhere(addresses: Long*) extends SystemMemory {
    private val left = addresses.iterator
    var taken = Set.empty[Long]
    override def allocate(bytes: Long): Long = {
      val address = left.next()
      taken += address
      address
    }
    override def free(address: Long): Unit = {
      assert(taken(address), f"$address%x was not allocated")
      taken -= address
    }
  }

  test("pages are handed out wherever a slot can name their rows") {
    val highest = (1L << 48) - (PagePool.PagesPerChunk + 1) * PagePool.PageBytes
    for (address <- Seq(4096L, (1L << 47) - 16, 1L << 47, 0xaaaab000L << 16, highest)) {
      val memory = new Elsewhere(address)
      val pool = new PagePool(1L << 30, memory)
      val pages = Seq.fill(PagePool.PagesPerChunk)(pool.page())
      for (page <- pages; row <- Seq(page.address + PagePool.PageHeader, page.address + PagePool.PageBytes - 8)) {
        assert(row >= address && row < (1L << 48))
        val word = HashIndex.wordOf(-1L, row, removed = true)
        assert(HashIndex.rowOf(word) == row && HashIndex.mayBe(word, -1L))
      }
      pages.foreach(pool.give)
      pool.trim()
      assert(memory.taken.isEmpty && pool.reservedBytes == 0)
    }
  }

  test("memory that no slot can name is refused by name and given back, whatever is asked for") {
    val behind = (1L << 48) - PagePool.PagesPerChunk * PagePool.PageBytes
    val requests = Seq[PagePool => Unit](_.page(), _.allocate(100), _.allocate(1L << 20), _.largePage(100L << 20))
    for (address <- Seq(behind, 1L << 48, 1L << 52, 1L << 62, -4096L); request <- requests) {
      val memory = new Elsewhere(address)
      val pool = new PagePool(1L << 30, memory)
      val error = intercept[LaminaError](request(pool))
      assert(error.kind == LaminaError.StoreUnsupported)
      assert(error.getMessage.contains(f"0x$address%x") && error.getMessage.contains("2^48"))
      assert(memory.taken.isEmpty && pool.reservedBytes == 0)
    }
  }

  test("lengths that a row's header cannot hold are refused") {
    val pages = new FamilyPages(newPool(), new Resting(newPool()))
    for ((key, value) <- Seq((-1, 0), (0, -1))) {
      intercept[IllegalArgumentException](pages.append(null, 0L, key, value, 0))
    }
    for ((key, value) <- Seq((Rows.MaxLength + 1, 0), (0, Rows.MaxLength + 1))) {
      val error = intercept[LaminaError](pages.append(null, 0L, key, value, 0))
      assert(error.kind == LaminaError.RowTooLarge)
    }
  }
}
