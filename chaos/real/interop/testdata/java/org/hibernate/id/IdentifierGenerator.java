package org.hibernate.id;

import org.hibernate.engine.spi.SharedSessionContractImplementor;

public interface IdentifierGenerator extends org.hibernate.generator.Generator {
  Object generate(SharedSessionContractImplementor session, Object object);
}
