declare const tag: unique symbol;

/** A nominal type: a `T` that only the functions which build it can produce without a cast. */
export type Brand<T, Name extends string> = T & { readonly [tag]: Name };
