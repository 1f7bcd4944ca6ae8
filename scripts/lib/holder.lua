-- lib/holder: who holds a lock, and whether a hash is a lock at all.
--
-- The hash of a lock has one field: the holder's id, with a count. The hash of a read-write lock
-- has the field mode, too, and a count for each reader or the writer. Any other hash is data of
-- another program, which no script may change. The answer of a script then is an error FOREIGN,
-- which says what the key holds. A hash may have millions of fields, so at most about ten are
-- read. Redis keeps a small hash (at most 512 fields by default) in one piece, and one page of
-- HSCAN returns all of it.
-- uses     lib/count
-- defines  foreign(what): the error for a key with such data;
--          foreign_hash(fields): the error for a hash with that many fields;
--          counts_of(lock_hash, fields): the first fields, and their values; nil if one of them,
--          other than mode, has no count;
--          holder_of(lock_hash): the holder's id, nil if nobody holds the lock, '' if it is a
--          read-write lock; or nil and the error;
--          exclusive_holder_of(lock_hash): the same, with an error for a read-write lock, too

local function foreign(what)
  return redis.error_reply('FOREIGN the key holds ' .. what .. '; use another name')
end

local function foreign_hash(fields)
  local with = fields == 1 and '1 field' or string.format('%d fields', fields)
  return foreign('a hash with ' .. with .. ' that is no lock')
end

local function counts_of(lock_hash, fields)
  local entries = fields <= 10 and redis.call('hgetall', lock_hash)
    or redis.call('hscan', lock_hash, 0, 'count', 10)[2]
  for i = 1, #entries, 2 do
    if entries[i] ~= 'mode' and not read_count(entries[i + 1]) then
      return nil
    end
  end
  return entries
end

local function holder_of(lock_hash)
  local fields = redis.call('hlen', lock_hash)
  if fields == 0 then
    return nil
  elseif fields == 1 then
    local entry = redis.call('hgetall', lock_hash)
    if entry[1] and entry[1] ~= 'mode' and read_count(entry[2]) then
      return entry[1]
    end
  end
  local mode = redis.call('hget', lock_hash, 'mode')
  if (mode == 'read' or mode == 'write') and counts_of(lock_hash, fields) then
    return ''
  end
  if redis.call('exists', lock_hash) == 0 then
    return nil -- the lock expired just now: miniredis does not stop the clock while a script runs
  end
  return nil, foreign_hash(fields)
end

local function exclusive_holder_of(lock_hash)
  local holder, foreign_data = holder_of(lock_hash)
  if holder == '' then
    return nil, foreign('a read-write lock')
  end
  return holder, foreign_data
end
