-- rwlock/foreign: whether a key holds anything but a read-write lock.
-- uses     lib/holder
-- defines  foreign_data_of(lock_hash), no_rwlock(lock_hash), foreign_to_mode(lock_hash, mode)

-- foreign_data_of returns the error for a key that holds no lock; nil if it does, or is missing.
local function foreign_data_of(lock_hash)
  return select(2, holder_of(lock_hash))
end

-- no_rwlock returns the error for a key that holds anything but a read-write lock.
local function no_rwlock(lock_hash)
  local holder, foreign_data = holder_of(lock_hash)
  if holder and holder ~= '' then
    return foreign('a lock that is no read-write lock')
  end
  return foreign_data
end

-- foreign_to_mode is a cheaper foreign_data_of, for a hash with that mode. It takes a hash that
-- expires, and has more than four fields, for readers. If it has read the fields, and they belong
-- to a lock, it also returns them with their values.
local function foreign_to_mode(lock_hash, mode)
  if mode ~= 'read' and mode ~= 'write' then
    return foreign_data_of(lock_hash)
  end
  local fields = redis.call('hlen', lock_hash)
  if fields > 4 and redis.call('pttl', lock_hash) ~= -1 then
    return nil
  end
  local entries = counts_of(lock_hash, fields)
  return not entries and foreign_hash(fields) or nil, entries
end
