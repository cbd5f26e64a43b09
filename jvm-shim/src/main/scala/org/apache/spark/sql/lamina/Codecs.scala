package org.apache.spark.sql.lamina

import scala.collection.mutable

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.sql.types.StructType

/**
 * The column families that an operator announced, and the codecs of those in a table.
 *
 * What the operator says (schemas, encoder spec) decides how rows are read; what is in the manifest (encoding,
 * checksum, many values) decides how they were written and stays as it is. Used under the lock of one table.
 */
final class Codecs(storeConf: StateStoreConf, schemas: Option[StateSchemaProvider], storeName: String) {
  import Codecs.compatible

  private val announced = mutable.HashMap.empty[String, ColumnFamily]
  private val codecs = mutable.HashMap.empty[String, FamilyCodec]

  /** Remembers what an operator says about a column family; its id is not known here. */
  def register(
      name: String,
      keySchema: StructType,
      valueSchema: StructType,
      spec: KeyStateEncoderSpec,
      multiValue: Boolean,
      internal: Boolean
  ): ColumnFamily = {
    // Spark's own suites let this provider learn the schemas that a test uses.
    schemas match {
      case Some(test: TestStateSchemaProvider) => test.captureSchema(name, keySchema, valueSchema)
      case _ => ()
    }
    val family = ColumnFamily(
      Codecs.NoId,
      name,
      internal,
      Codecs.keysOf(spec, keySchema),
      valueSchema,
      spec,
      storeConf.stateStoreEncodingFormat,
      multiValue,
      storeConf.rowChecksumEnabled
    )
    announced(name) = family
    family
  }

  def unregister(name: String): Unit = {
    announced -= name
    codecs -= name
  }

  /**
   * `families` with the default one's schemas as announced. A reader may announce a default that is none: what is there
   * stays then.
   */
  def updated(families: ColumnFamilies): ColumnFamilies = families.get(StateStore.DEFAULT_COL_FAMILY_NAME) match {
    case Some(known) if compatible(known, default) => updated(families, known)
    case _ => families
  }

  /** `families` with the schemas that were announced for one of them. */
  def updated(families: ColumnFamilies, known: ColumnFamily): ColumnFamilies = {
    val merged = merge(known)
    if (merged == known) families else families.replace(merged)
  }

  def default: ColumnFamily = announced(StateStore.DEFAULT_COL_FAMILY_NAME)

  /** The codec of a family that a version has. */
  def of(family: ColumnFamily): FamilyCodec = codec(merge(family))

  /** The codec of an announced family that a version does not have. */
  def registered(name: String): Option[FamilyCodec] = announced.get(name).map(codec)

  private def codec(family: ColumnFamily): FamilyCodec = codecs.get(family.name) match {
    case Some(known) if known.family == family => known
    case _ =>
      val made = new FamilyCodec(family, schemas, storeConf, storeName)
      codecs(family.name) = made
      made
  }

  private def merge(known: ColumnFamily): ColumnFamily = announced.get(known.name).fold(known) { now =>
    if (!compatible(known, now)) {
      throw new LaminaError(
        LaminaError.StoreUnsupported,
        s"column family ${known.name} of $storeName was written with ${Codecs.kind(known)} and is opened with " +
          s"${Codecs.kind(now)}; a query cannot change that on a restart"
      )
    }
    known.copy(keySchema = now.keySchema, valueSchema = now.valueSchema, spec = now.spec)
  }
}

object Codecs {
  private def compatible(one: ColumnFamily, other: ColumnFamily): Boolean =
    one.ordered == other.ordered && one.multiValue == other.multiValue

  private val NoId = -1

  /** The schema of the keys. Joins name their families' keys without the time that the encoder adds to them. */
  private def keysOf(spec: KeyStateEncoderSpec, named: StructType): StructType = spec match {
    case TimestampAsPostfixKeyStateEncoderSpec(keys) => keys
    case TimestampAsPrefixKeyStateEncoderSpec(keys) => keys
    case _ => named
  }

  private def kind(family: ColumnFamily): String =
    (if (family.ordered) "ordered keys" else "unordered keys") + (if (family.multiValue) " and many values"
                                                                  else " and one value")
}
