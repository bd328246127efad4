package org.hibernate.annotations;

public @interface IdGeneratorType {
  Class<? extends org.hibernate.generator.Generator> value();
}
