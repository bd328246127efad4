package org.hibernate.engine.spi;

public interface SharedSessionContractImplementor {}
