-- What a data directory is used for beside rows: run on a volume and on a directory, it must print
-- the same. Paths are relative to the data directory.
set sort_buffer_size = 32768;
create database d;
use d;

-- InnoDB, altered in each way; a file for each table.
create table i (a int primary key auto_increment, b varchar(200), c int, key (c)) engine = innodb;
insert into i (b, c) select repeat('x', 100), seq from seq_1_to_5000;
alter table i add column e int default 5, algorithm = instant;
alter table i add index (b), algorithm = inplace;
alter table i drop index b, algorithm = inplace;
alter table i modify c bigint, algorithm = copy;
alter table i row_format = compressed;
alter table i row_format = dynamic page_compressed = 1;
optimize table i;
alter table i page_compressed = 0;
rename table i to j;
create database d2;
rename table j to d2.i;
rename table d2.i to i;
drop database d2;
select count(*), sum(c), min(b) from i;

-- Partitions.
create table p (a int, b varchar(50)) engine = innodb partition by range (a)
  (partition p0 values less than (100), partition p1 values less than (1000),
   partition p2 values less than maxvalue);
insert into p select seq, 'p' from seq_1_to_3000;
alter table p drop partition p0;
alter table p reorganize partition p2 into
  (partition p2 values less than (2000), partition p3 values less than maxvalue);
alter table p truncate partition p1;
create table x like p;
alter table x remove partitioning;
alter table p exchange partition p1 with table x;
select count(*), sum(a) from p;

-- Other engines.
create table m (a int primary key, b text) engine = myisam;
insert into m select seq, repeat('m', 300) from seq_1_to_2000;
alter table m add index (b(20));
delete from m where a % 2;
repair table m;
optimize table m;
create table ar (a int primary key, b text) engine = aria transactional = 1;
insert into ar select seq, repeat('a', 300) from seq_1_to_2000;
alter table ar add fulltext (b);
optimize table ar;
create table cs (a int not null, b varchar(10) not null) engine = csv;
insert into cs values (1, 'x'), (2, 'y');

-- Temporary tables, and a sort that needs files.
create temporary table ti (a int, b text) engine = innodb;
insert into ti select seq, repeat('t', 1000) from seq_1_to_2000;
create temporary table tm (a int, b text) engine = myisam;
insert into tm select seq, repeat('t', 1000) from seq_1_to_2000;
select count(*) from ti join tm using (a);
select count(*), max(c) from (select * from i order by b, c desc limit 100000) sorted;

-- Files of text.
select * from i into outfile 'out.txt';
create table l like i;
load data infile 'out.txt' into table l;
select count(*), sum(c) from l;
truncate table l;
select count(*) from l;
drop table l;

-- Full text, places, sequences, views.
create table f (a int primary key, t text, fulltext (t)) engine = innodb;
insert into f select seq, concat('word', seq, ' other') from seq_1_to_1000;
select count(*) from f where match (t) against ('word77');
create table g (a int primary key, g geometry not null, spatial index (g));
insert into g values (1, point(1, 2));
create view v as select a from i;
create sequence s;
select nextval(s);

-- A tablespace taken out and in again.
create table k (a int primary key, b text) engine = innodb;
insert into k select seq, repeat('k', 500) from seq_1_to_1000;
flush tables k for export;
unlock tables;
alter table k discard tablespace;
select count(*) from k;

-- Backup locks, logs.
backup stage start;
backup stage block_commit;
backup stage end;
flush binary logs;
purge binary logs to 'bin.000002';
set global general_log = 1;
set global slow_query_log = 1;
flush logs;
set global general_log = 0;
set global slow_query_log = 0;
check table i, p, x, m, ar, cs, f, g extended;
drop table k, g, f;
drop view v;
select table_name, engine from information_schema.tables where table_schema = 'd' order by 1;
