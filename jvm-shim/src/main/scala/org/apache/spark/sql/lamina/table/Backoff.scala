package org.apache.spark.sql.lamina.table

/** Leaves something out the more often the longer it is done in vain: up to 31 times in a row. Thread-safe. */
private[lamina] final class Backoff {
  private var vain, skipped = 0

  /** Whether it is to be done this time. */
  def isDue: Boolean = synchronized {
    val due = skipped == 0
    if (!due) skipped -= 1
    due
  }

  /** It was done, and whether that was of use. */
  def done(gave: Boolean): Unit = synchronized {
    vain = if (gave) 0 else math.min(vain + 1, Backoff.MostVain)
    skipped = (1 << vain) - 1
  }

  /** Things have changed: it is done the next time. */
  def reset(): Unit = synchronized {
    vain = 0
    skipped = 0
  }
}

private object Backoff {
  val MostVain = 5
}
