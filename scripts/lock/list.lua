-- lock/list: read the kind of a lock from its keys, and the fields of its hash.
-- uses     lib/holder, lib/primary, rwlock/hold_keys, rwlock/readers
-- KEYS[1]  lock_hash
-- KEYS[2]  token_key (optional): fencing token
-- KEYS[3]  queue (optional): of a fair lock
-- KEYS[4]  clients (optional): with waiters in the fair queue. KEYS[2] to KEYS[4] are missing if
--          they are in another cluster slot
-- returns  {kind text, pttl number, token text, waiters {id text}, fields (field text, value text,
--            pttl number)...}:
--          the last fencing token or '';
--          the ids in the fair queue;
--          the fields of the hash, with the pttl of the holder of each, without dead readers. The
--            kind is "lock" if no other key exists
local lock_hash, token_key, queue, clients = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

prefer_primary(lock_hash)
local kind, token = 'lock', token_key and redis.pcall('get', token_key)
if type(token) ~= 'string' then
  token = ''
end
local mode, pttl = redis.call('hget', lock_hash, 'mode'), redis.call('pttl', lock_hash)
local entries, waiters = {}, {}
-- Other programs' hashes may have millions of fields: do not read them.
if holder_of(lock_hash) then
  entries = redis.call('hgetall', lock_hash)
end
if mode == 'read' then
  kind = 'reader'
elseif mode == 'write' then
  kind = 'writer'
elseif token_key and redis.call('exists', queue) + redis.call('exists', clients) > 0 then
  kind = 'fair'
  waiters = redis.pcall('lrange', queue, 0, -1)
  if waiters.err then
    waiters = {} -- a key of another type
  end
elseif token ~= '' then
  kind = 'fenced'
end
local answer, prefix = {kind, pttl, token, waiters}, hold_prefix(lock_hash)
local of_rwlock = kind == 'reader' or kind == 'writer'
for i = 1, #entries, 2 do
  local field, value, left = entries[i], entries[i + 1], pttl
  local is_reader = of_rwlock and tonumber(value) and string.sub(field, -6) ~= ':write'
  if is_reader then
    left = reader_ttl(prefix, field, value)
  end
  if not is_reader or left > 0 then
    for _, part in ipairs({field, value, left}) do
      table.insert(answer, part)
    end
  end
end
return answer
